package apiserver

import (
	"context"
	"errors"
	"log/slog"
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
	dispatch *flowcontrol.Dispatcher
	log      *slog.Logger
	kinds    []flowKind // none where they are not served

	mu    sync.Mutex
	taken atomic.Int64 // what changed was when flow control was configured last
}

type flowKind struct {
	res     *api.Resource
	objects *storage.Collection
}

func (s *Server) newFlowObjects(d *flowcontrol.Dispatcher) *flowObjects {
	f := &flowObjects{dispatch: d, log: s.Log}
	for _, res := range s.flowKinds() {
		f.kinds = append(f.kinds, flowKind{res, s.collection(res)})
	}
	return f
}

// refresh takes over what is new. Who comes while another does so waits for him.
func (f *flowObjects) refresh(ctx context.Context) {
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
func (f *flowObjects) changed() (sum int64) {
	for _, kind := range f.kinds {
		revision, _ := kind.objects.Changed()
		sum += revision
	}
	return sum
}

// take configures flow control by what memory holds now.
func (f *flowObjects) take(ctx context.Context) error {
	var levels []*flowv1.PriorityLevelConfiguration
	var schemas []*flowv1.FlowSchema
	for _, kind := range f.kinds {
		list, err := kind.objects.List(ctx, storage.ListRequest{At: storage.At{Any: true}})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			obj, err := decode(kind.res, o)
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
	f.dispatch.Configure(levels, schemas)
	return nil
}
