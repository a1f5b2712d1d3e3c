package apiserver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	flowv1 "k8s.io/api/flowcontrol/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/storage"
)

// flowObjects keep flow control configured by the objects in memory. As with roles (authz_policy.go), what
// has changed is taken over before the next request is judged, by whoever makes it.
type flowObjects struct {
	server   *Server
	dispatch *flowcontrol.Dispatcher

	mu       sync.Mutex
	watchers []*policyWatcher // fixed; none where the kinds are not served
	taking   atomic.Bool      // somebody is taking over what watchers have told him, and tell no more
	levels   map[string]*flowv1.PriorityLevelConfiguration
	schemas  map[string]*flowv1.FlowSchema
}

func newFlowObjects(ctx context.Context, s *Server, d *flowcontrol.Dispatcher) (*flowObjects, error) {
	f := &flowObjects{server: s, dispatch: d,
		levels: map[string]*flowv1.PriorityLevelConfiguration{}, schemas: map[string]*flowv1.FlowSchema{}}
	for _, res := range s.flowKinds() {
		w := &policyWatcher{res: res}
		if err := w.open(ctx, s); err != nil {
			return nil, err
		}
		f.watchers = append(f.watchers, w)
	}
	f.take(ctx)
	return f, nil
}

// refresh takes over what is new. Who comes while another does so waits for him.
func (f *flowObjects) refresh() {
	news := false
	for _, w := range f.watchers {
		news = news || w.watcher.Load().Woken()
	}
	if news || f.taking.Load() { // in this order
		f.take(context.Background())
	}
}

func (f *flowObjects) take(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taking.Store(true)
	defer f.taking.Store(false)
	changed := false
	for _, w := range f.watchers {
		n, err := f.takeFrom(ctx, w)
		if err != nil {
			err = f.lost(ctx, w, err)
			n++
		}
		if err != nil {
			f.server.Log.Error("reading the objects of flow control", "kind", w.res.Kind, "error", err)
		}
		changed = changed || n > 0
	}
	if changed {
		f.dispatch.Configure(slices.Collect(maps.Values(f.levels)), slices.Collect(maps.Values(f.schemas)))
	}
}

func (f *flowObjects) takeFrom(ctx context.Context, w *policyWatcher) (n int, err error) {
	for {
		events, err := w.watcher.Load().Poll(ctx)
		if err != nil || len(events) == 0 {
			return n, err
		}
		n += len(events)
		for i := range events {
			f.apply(w.res, &events[i])
		}
	}
}

func (f *flowObjects) apply(res *api.Resource, e *storage.Event) {
	name := e.Object.Key.Name
	if res.Kind == "FlowSchema" {
		delete(f.schemas, name)
	} else {
		delete(f.levels, name)
	}
	if e.Type == storage.Deleted {
		return
	}
	obj, err := decode(res, e.Object)
	if err != nil {
		f.server.Log.Error("an object of flow control is not used", "object", e.Object.Key.String(), "error", err)
		return
	}
	switch o := obj.(type) {
	case *flowv1.PriorityLevelConfiguration:
		f.levels[name] = o
	case *flowv1.FlowSchema:
		f.schemas[name] = o
	}
}

// lost begins a kind anew whose log was lost.
func (f *flowObjects) lost(ctx context.Context, w *policyWatcher, cause error) error {
	if errors.Is(cause, storage.ErrUnavailable) { // the store has closed
		return nil
	}
	f.server.Log.Warn("reading the objects of flow control anew", "kind", w.res.Kind, "error", cause)
	if w.res.Kind == "FlowSchema" {
		clear(f.schemas)
	} else {
		clear(f.levels)
	}
	old := w.watcher.Load()
	err := w.open(ctx, f.server)
	old.Close()
	if err == nil {
		_, err = f.takeFrom(ctx, w)
	}
	return err
}
