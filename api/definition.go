package api

import (
	"context"
	"sync/atomic"
)

// Definition is the server's view of the stored object that defines a kind (Resource.Definition), such as a
// CustomResourceDefinition. An update of that object that does not change the kind keeps the Definition. It is safe
// for concurrent use.
type Definition struct {
	// Resource and Name identify the stored object.
	Resource *Resource
	Name     string

	revision    atomic.Int64
	terminating atomic.Bool
	present     context.Context // until the kind is changed or removed
	end         context.CancelFunc
}

// NewDefinition returns the Definition of a stored object.
func NewDefinition(r *Resource, name string) *Definition {
	d := &Definition{Resource: r, Name: name}
	d.present, d.end = context.WithCancel(context.Background())
	return d
}

// Seen records the object's latest revision and whether the object is being deleted.
func (d *Definition) Seen(revision int64, terminating bool) {
	d.terminating.Store(terminating)
	d.revision.Store(revision)
}

// Revision returns the revision of the object that the server has seen last. A create of an object of the kind
// succeeds only if the definition is still at this revision: otherwise the definition may have been deleted, or may
// have become stricter.
func (d *Definition) Revision() int64 { return d.revision.Load() }

// Terminating reports whether the definition is being deleted. No new objects of the kind can be created then.
func (d *Definition) Terminating() bool { return d.terminating.Load() }

// End cancels Present: the kind was changed or removed.
func (d *Definition) End() { d.end() }

// Present returns a context that is cancelled when the kind is changed or removed. It ends watches of its objects.
func (d *Definition) Present() context.Context { return d.present }
