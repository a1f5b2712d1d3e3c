// Package config keeps flow control configured by the FlowSchemas and PriorityLevelConfigurations that are stored.
// Objects come in from memory; they are handed to the Dispatcher of package flowcontrol, which does not know where its
// configuration comes from. As with roles, changes are taken over by the next request, before it is classified.
package config

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	flowv1 "k8s.io/api/flowcontrol/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/storage"
)

// Objects are the stored objects of a kind; *storage.Collection implements it.
type Objects interface {
	// Changed is the revision of the last change that memory holds, and whether it holds anything.
	Changed() (revision int64, any bool)
	List(ctx context.Context, r storage.ListRequest) (*storage.List, error)
}

// Kind is one of the kinds that configure flow control.
type Kind struct {
	Resource *api.Resource
	Objects  Objects
}

// Follower is a Dispatcher that is configured by objects. Its methods are safe for concurrent use.
type Follower struct {
	*flowcontrol.Dispatcher
	log   *slog.Logger
	kinds []Kind // none where they are not served

	mu    sync.Mutex
	taken atomic.Int64 // what changed was when flow control was configured last
}

// New returns a Follower, which does nothing before the first Refresh.
func New(d *flowcontrol.Dispatcher, kinds []Kind, log *slog.Logger) *Follower {
	return &Follower{Dispatcher: d, log: log, kinds: kinds}
}

// Refresh takes over changes. A request that comes while another one does so waits for it.
func (f *Follower) Refresh(ctx context.Context) {
	if f.changed() == f.taken.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.changed()
	if changed == f.taken.Load() {
		return
	}
	if err := f.take(ctx); err != nil {
		if !errors.Is(err, storage.ErrUnavailable) { // memory is not there yet, or no more
			f.log.Error("reading the objects of flow control", "error", err)
		}
		return
	}
	f.taken.Store(changed)
}

// changed rises with each change of any object: it is the sum of the kinds' revisions.
func (f *Follower) changed() (sum int64) {
	for _, kind := range f.kinds {
		revision, _ := kind.Objects.Changed()
		sum += revision
	}
	return sum
}

// take configures flow control by what memory holds now.
func (f *Follower) take(ctx context.Context) error {
	var levels []*flowv1.PriorityLevelConfiguration
	var schemas []*flowv1.FlowSchema
	for _, kind := range f.kinds {
		list, err := kind.Objects.List(ctx, storage.ListRequest{At: storage.At{Any: true}, Readable: true})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			obj, err := encoding.Decode(ctx, kind.Resource, o)
			if err != nil {
				f.log.Error("an object of flow control is not used", "object", o.Key.String(), "error", err)
				continue
			}
			switch obj := obj.(type) {
			case *flowv1.PriorityLevelConfiguration:
				levels = append(levels, obj)
			case *flowv1.FlowSchema:
				schemas = append(schemas, obj)
			}
		}
	}
	f.Configure(levels, schemas)
	return nil
}
