package api

import (
	"context"
	"sync/atomic"
)

// Definition is what a server knows of the stored object that defines a kind (Resource.Definition). It outlives changes
// of that object that leave the kind as it is. It is safe for concurrent use.
type Definition struct {
	// Resource and Name say where the object is stored.
	Resource *Resource
	Name     string

	revision    atomic.Int64
	terminating atomic.Bool
	present     context.Context // until the kind has changed or is gone
	end         context.CancelFunc
}

// NewDefinition returns the Definition of a stored object.
func NewDefinition(of *Resource, name string) *Definition {
	d := &Definition{Resource: of, Name: name}
	d.present, d.end = context.WithCancel(context.Background())
	return d
}

// Seen notes the revision of the object, and whether it is being deleted.
func (d *Definition) Seen(revision int64, terminating bool) {
	d.terminating.Store(terminating)
	d.revision.Store(revision)
}

// Revision is that of the object which the server has seen last. An object of the kind is created only if the
// definition still is at this revision: otherwise it may have been deleted or may allow less.
func (d *Definition) Revision() int64 { return d.revision.Load() }

// Terminating reports whether the object is being deleted. The kind gets no new objects then.
func (d *Definition) Terminating() bool { return d.terminating.Load() }

// End says that the kind has changed or is gone.
func (d *Definition) End() { d.end() }

// Present is done when the kind has changed or is gone: watches of its objects end.
func (d *Definition) Present() context.Context { return d.present }
