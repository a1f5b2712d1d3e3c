package definitions

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// retry is how long the objects of a definition that is being deleted have until they are counted again.
const retry = 200 * time.Millisecond

// keep keeps the definitions' conditions up until ctx ends.
func (d *Definitions) keep(ctx context.Context) {
	for {
		reached := d.reachedNow()
		waiting := d.round(ctx)
		d.kept.Store(reached)
		var again <-chan time.Time
		if waiting {
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
		case <-again:
		}
	}
}

func (d *Definitions) reachedNow() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reached
}

// Busy reports whether a change of a definition that is in memory has not been dealt with. A definition that waits for
// others to let its objects go has been.
func (d *Definitions) Busy() bool {
	changed, _ := d.Objects.Collection(d.res).Changed()
	return d.reachedNow() < changed || d.kept.Load() < changed
}

// round looks at each definition once. waiting reports that one is being deleted and still has objects.
func (d *Definitions) round(ctx context.Context) (waiting bool) {
	for _, e := range d.all() {
		if ctx.Err() != nil {
			return false
		}
		var err error
		if e.DeletionTimestamp == nil {
			err = d.settle(ctx, e)
		} else if slices.Contains(e.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
			waiting = true
			err = d.cleanUp(ctx, e)
		}
		if err != nil && !overtaken(err) && ctx.Err() == nil {
			waiting = true
			d.Log.Warn("keeping a CustomResourceDefinition", "name", e.Name, "error", err)
		}
	}
	return waiting
}

// overtaken reports that the definition was changed meanwhile. The watch brings the change.
func overtaken(err error) bool {
	var conflict *storage.Conflict
	return errors.As(err, &conflict) || errors.Is(err, storage.ErrNotFound)
}

// settle writes the names and conditions that a definition should have.
func (d *Definitions) settle(ctx context.Context, e *defined) error {
	d.mu.Lock()
	taken := d.taken(e.Definition)
	d.mu.Unlock()
	light := e.light()
	was := light.DeepCopy()
	settle(light, taken)
	stamp(light, was.Status.Conditions, d.Clock.Now())
	if equality.Semantic.DeepEqual(light.Status, was.Status) {
		return nil
	}
	err := d.write(ctx, e, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Status.AcceptedNames, crd.Status.Conditions = light.Status.AcceptedNames, light.Status.Conditions
	})
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.claims[e.Name] = claim{e.UID, light.Status.AcceptedNames}
	}
	return err
}

// cleanUp takes a definition that is being deleted one step on: it says that it has begun, deletes the objects, and
// gives the definition free when there are none. Its kind has no new objects from the first step on: each create checks
// that the definition is at the revision which the creating server knows.
func (d *Definitions) cleanUp(ctx context.Context, e *defined) error {
	terminating := func(holds bool, reason, message string) apiextensionsv1.CustomResourceDefinitionCondition {
		return condition(apiextensionsv1.Terminating, holds, reason, message)
	}
	begun := terminating(true, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
	end := terminating(false, "NeverEstablished", "resource was never established")
	if e.Is(apiextensionsv1.Established) {
		if !apihelpers.IsCRDConditionEquivalent(&begun, apihelpers.FindCRDCondition(e.light(), begun.Type)) {
			return d.write(ctx, e, func(crd *apiextensionsv1.CustomResourceDefinition) {
				d.set(crd, begun)
			})
		}
		stored := e.AsStored() // the deletion must not depend on a webhook
		end = terminating(false, "InstanceDeletionCompleted", "removed all instances")
		if len(d.besideBuiltin([]*api.Resource{stored})) == 0 {
			end = terminating(false, "OverlappingBuiltInResource",
				"instances overlap with built-in resources in storage")
		} else if empty, err := d.empty(ctx, e, stored); err != nil || !empty {
			return err
		}
	}
	return d.write(ctx, e, func(crd *apiextensionsv1.CustomResourceDefinition) {
		d.set(crd, end)
		apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
	})
}

func (d *Definitions) set(crd *apiextensionsv1.CustomResourceDefinition,
	c apiextensionsv1.CustomResourceDefinitionCondition) {
	was := slices.Clone(crd.Status.Conditions)
	apihelpers.SetCRDCondition(crd, c)
	stamp(crd, was, d.Clock.Now())
}

// empty deletes the objects of a definition's kind, once, and reports whether none is left.
func (d *Definitions) empty(ctx context.Context, e *defined, stored *api.Resource) (bool, error) {
	if !d.emptied[e.UID] {
		if err := d.Objects.DeleteAll(ctx, stored); err != nil {
			return false, err
		}
		d.emptied[e.UID] = true
	}
	objects := d.Objects.Collection(stored)
	if objects.Count() > 0 {
		return false, nil
	}
	list, err := objects.List(ctx, storage.ListRequest{Limit: 1})
	return err == nil && len(list.Items) == 0, err
}

// write changes the stored definition, or deletes it if it is being deleted and nothing holds it any more.
func (d *Definitions) write(ctx context.Context, e *defined,
	change func(*apiextensionsv1.CustomResourceDefinition)) error {
	var result *apiextensionsv1.CustomResourceDefinition
	writes, err := d.Objects.Update(d.res, e.object, "status", func(obj api.Object) {
		result = obj.(*apiextensionsv1.CustomResourceDefinition)
		change(result)
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	if result.DeletionTimestamp != nil && len(result.Finalizers) == 0 {
		writes = []storage.Write{{Op: storage.Delete, Key: e.object.Key, Expect: e.object.Revision}}
		delete(d.emptied, e.UID)
	}
	_, err = d.Objects.Commit(ctx, writes...)
	return err
}

// all are the definitions that may have something to keep up, oldest first: the first one that asks for a name gets it.
func (d *Definitions) all() []*defined {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []*defined
	for _, e := range d.known {
		if !e.broken && (e.DeletionTimestamp != nil || !e.settled()) {
			all = append(all, e)
		}
	}
	for name, c := range d.claims {
		if e := d.known[name]; e == nil || e.UID != c.uid || e.Is(apiextensionsv1.NamesAccepted) {
			delete(d.claims, name)
		}
	}
	slices.SortFunc(all, func(a, b *defined) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// settled reports that the definition has the names that it asks for.
func (e *defined) settled() bool {
	return e.Is(apiextensionsv1.Established) && e.Is(apiextensionsv1.NamesAccepted) && !e.Spec.PreserveUnknownFields &&
		equality.Semantic.DeepEqual(e.Spec.Names, e.Status.AcceptedNames) && approvalHolds(e.light())
}

// light is the definition without its versions.
func (e *defined) light() *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name, crd.Annotations = e.Name, e.Annotations
	crd.Spec.Group, crd.Spec.Names, crd.Spec.PreserveUnknownFields = e.Spec.Group, e.Spec.Names,
		e.Spec.PreserveUnknownFields
	crd.Spec.Conversion = e.Spec.Conversion
	e.Status.DeepCopyInto(&crd.Status)
	return crd
}
