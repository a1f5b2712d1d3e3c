package crd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// retryInterval is after how long a definition that is being deleted is looked at again: its objects may be gone.
const retryInterval = 200 * time.Millisecond

// sync keeps the definitions' status up until ctx ends.
func (c *Controller) sync(ctx context.Context) {
	for {
		reached := c.reachedRevision()
		waiting := c.syncAll(ctx)
		c.synced.Store(reached)
		var retry <-chan time.Time
		if waiting {
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-retry:
		}
	}
}

func (c *Controller) reachedRevision() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reached
}

// Busy reports whether a change of a definition that is in memory has not been dealt with. A definition that waits for
// finalizers of its objects has been dealt with.
func (c *Controller) Busy() bool {
	changed, _ := c.Objects.Collection(c.res).Changed()
	return c.reachedRevision() < changed || c.synced.Load() < changed
}

// syncAll looks at each definition once. waiting reports that one is being deleted and still has objects.
func (c *Controller) syncAll(ctx context.Context) (waiting bool) {
	for _, d := range c.pending() {
		if ctx.Err() != nil {
			return false
		}
		var err error
		if d.DeletionTimestamp == nil {
			err = c.syncStatus(ctx, d)
		} else if slices.Contains(d.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
			waiting = true
			err = c.finalize(ctx, d)
		}
		if err != nil && !outdated(err) && ctx.Err() == nil {
			waiting = true
			c.Log.Warn("keeping a CustomResourceDefinition", "name", d.Name, "error", err)
		}
	}
	return waiting
}

// outdated reports that the definition was changed meanwhile. The watch brings the change.
func outdated(err error) bool {
	var conflict *storage.Conflict
	return errors.As(err, &conflict) || errors.Is(err, storage.ErrNotFound)
}

// pending returns the definitions that may need a write of their status, oldest first: the first one that asks for a
// name gets it.
func (c *Controller) pending() []*definition {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pending []*definition
	for _, d := range c.definitions {
		if !d.broken && (d.DeletionTimestamp != nil || !d.settled()) {
			pending = append(pending, d)
		}
	}
	for name, r := range c.reserved {
		if d := c.definitions[name]; d == nil || d.UID != r.uid || d.Is(apiextensionsv1.NamesAccepted) {
			delete(c.reserved, name)
		}
	}
	slices.SortFunc(pending, func(a, b *definition) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return pending
}

// settled reports that the definition has the names that it asks for, and the conditions that follow.
func (d *definition) settled() bool {
	return d.Is(apiextensionsv1.Established) && d.Is(apiextensionsv1.NamesAccepted) && !d.Spec.PreserveUnknownFields &&
		equality.Semantic.DeepEqual(d.Spec.Names, d.Status.AcceptedNames) && approvalHolds(d.light())
}

// light returns the definition without its versions.
func (d *definition) light() *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name, crd.Annotations = d.Name, d.Annotations
	crd.Spec.Group, crd.Spec.Names, crd.Spec.PreserveUnknownFields = d.Spec.Group, d.Spec.Names,
		d.Spec.PreserveUnknownFields
	crd.Spec.Conversion = d.Spec.Conversion
	d.Status.DeepCopyInto(&crd.Status)
	return crd
}

// syncStatus writes the names and conditions that a definition should have.
func (c *Controller) syncStatus(ctx context.Context, d *definition) error {
	c.mu.Lock()
	used := c.usedNames(d.Definition)
	c.mu.Unlock()
	crd := d.light()
	old := crd.DeepCopy()
	setStatus(crd, used)
	setTransitionTimes(crd, old.Status.Conditions, c.Clock.Now())
	if equality.Semantic.DeepEqual(crd.Status, old.Status) {
		return nil
	}
	err := c.write(ctx, d, func(stored *apiextensionsv1.CustomResourceDefinition) {
		stored.Status.AcceptedNames, stored.Status.Conditions = crd.Status.AcceptedNames, crd.Status.Conditions
	})
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reserved[d.Name] = reservation{d.UID, crd.Status.AcceptedNames}
	}
	return err
}

// write changes the stored definition. If the definition is being deleted and no finalizer is left, write deletes it.
func (c *Controller) write(ctx context.Context, d *definition,
	change func(*apiextensionsv1.CustomResourceDefinition)) error {
	var result *apiextensionsv1.CustomResourceDefinition
	writes, err := c.Objects.Update(ctx, c.res, d.object, "status", func(obj api.Object) {
		result = obj.(*apiextensionsv1.CustomResourceDefinition)
		change(result)
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	if result.DeletionTimestamp != nil && len(result.Finalizers) == 0 {
		writes = []storage.Write{{Op: storage.Delete, Key: d.object.Key, Expect: d.object.Revision}}
		delete(c.deleted, d.UID)
	}
	_, err = c.Objects.Commit(ctx, writes...)
	return err
}
