package crd

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// finalize takes the deletion of a definition one step on: the condition Terminating is set, the objects are deleted,
// and when there are none the finalizer is removed. The kind has no new objects from the first step on: each create
// checks that the definition is at the revision that the creating server knows.
func (c *Controller) finalize(ctx context.Context, d *definition) error {
	terminating := func(holds bool, reason, message string) apiextensionsv1.CustomResourceDefinitionCondition {
		return condition(apiextensionsv1.Terminating, holds, reason, message)
	}
	begin := terminating(true, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
	end := terminating(false, "NeverEstablished", "resource was never established")
	if d.Is(apiextensionsv1.Established) {
		if !apihelpers.IsCRDConditionEquivalent(&begin, apihelpers.FindCRDCondition(d.light(), begin.Type)) {
			return c.write(ctx, d, func(crd *apiextensionsv1.CustomResourceDefinition) {
				c.setCondition(crd, begin)
			})
		}
		stored := d.AsStored() // the deletion must not depend on a webhook
		end = terminating(false, "InstanceDeletionCompleted", "removed all instances")
		if len(c.withoutBuiltin([]*api.Resource{stored})) == 0 {
			end = terminating(false, "OverlappingBuiltInResource",
				"instances overlap with built-in resources in storage")
		} else if empty, err := c.deleteInstances(ctx, d, stored); err != nil || !empty {
			return err
		}
	}
	return c.write(ctx, d, func(crd *apiextensionsv1.CustomResourceDefinition) {
		c.setCondition(crd, end)
		apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
	})
}

// deleteInstances deletes the objects of a definition's kind, once, and reports whether none is left.
func (c *Controller) deleteInstances(ctx context.Context, d *definition, stored *api.Resource) (empty bool, err error) {
	if !c.deleted[d.UID] {
		if err := c.Objects.DeleteAll(ctx, stored); err != nil {
			return false, err
		}
		c.deleted[d.UID] = true
	}
	objects := c.Objects.Collection(stored)
	if objects.Count() > 0 {
		return false, nil
	}
	list, err := objects.List(ctx, storage.ListRequest{Limit: 1})
	return err == nil && len(list.Items) == 0, err
}
