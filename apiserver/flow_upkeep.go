package apiserver

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every server keeps the objects of flow control as they should be, when they change and once a minute:
// mandatory ones are there and have their fixed specs; suggested ones are there, and have ours unless
// someone has taken that over; those of ours that we suggest no more go; and a schema's status says
// whether its level is there.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#maintenance-of-the-mandatory-and-suggested-configuration-objects
//
// Each write names the revision it begins with, so that of several servers that see the same need one
// writes and the others are refused, and find nothing to do when they look again.

const (
	upkeepEvery = time.Minute
	// upkeepMost is how often an object is written in that time: servers that disagree, because they are of
	// different releases, would undo each other's work for ever.
	upkeepMost = 6
)

// keepFlowControl does so until ctx ends.
func (s *Server) keepFlowControl(ctx context.Context) {
	if s.flowKinds() == nil {
		return
	}
	changed := make(chan struct{}, 1)
	var following sync.WaitGroup
	defer following.Wait()
	for _, res := range s.flowKinds() {
		following.Go(func() { s.tellChanges(ctx, res, changed) })
	}
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	written := map[storage.Key]int{}
	for {
		writes, err := s.flowUpkeep(ctx)
		for _, w := range writes {
			if written[w.Key]++; written[w.Key] > upkeepMost {
				continue
			}
			if _, refused := s.Store.Commit(ctx, w); refused != nil && !overtaken(refused) {
				err = errors.Join(err, refused)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("keeping the objects of flow control", "error", err)
		}
		select {
		case <-changed:
		case <-tick.C:
			clear(written)
		case <-ctx.Done():
			return
		}
	}
}

// overtaken reports that someone else has changed the object meanwhile, of which we are told.
func overtaken(err error) bool {
	var conflict *storage.Conflict
	return errors.As(err, &conflict) || errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrNotFound)
}

// tellChanges leaves a token whenever objects of the kind have changed.
func (s *Server) tellChanges(ctx context.Context, res *api.Resource, changed chan<- struct{}) {
	for ctx.Err() == nil {
		watcher, err := s.collection(res).Watch(ctx, storage.WatchRequest{Any: true})
		if err != nil {
			return // the store has closed
		}
		for err == nil {
			if _, err = watcher.Next(ctx); err == nil {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
		watcher.Close()
		if errors.Is(err, storage.ErrUnavailable) {
			return
		}
	}
}

// flowKinds are the levels' and the schemas', nil where they are not served.
func (s *Server) flowKinds() []*api.Resource {
	kinds := s.Registry.Snapshot()
	levels, schemas := kinds.Kind(flowv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration")), kinds.Kind(flowv1.SchemeGroupVersion.WithKind("FlowSchema"))
	if levels == nil || schemas == nil {
		return nil
	}
	return []*api.Resource{levels, schemas}
}

// missingFlowControl are the writes of what every cluster has and this one lacks.
func (s *Server) missingFlowControl(ctx context.Context) ([]storage.Write, error) {
	writes, err := s.flowUpkeep(ctx)
	return slices.DeleteFunc(writes, func(w storage.Write) bool { return w.Op != storage.Create }), err
}

// flowUpkeep are the writes that are needed, by what memory holds.
func (s *Server) flowUpkeep(ctx context.Context) ([]storage.Write, error) {
	kinds := s.flowKinds()
	if kinds == nil {
		return nil, nil
	}
	levels, schemas := flowControl()
	u := &upkeep{server: s, levels: map[string]bool{}}
	u.round(ctx, kinds[0], asObjects(levels))
	u.round(ctx, kinds[1], asObjects(schemas))
	return u.writes, u.err
}

func asObjects[T api.Object](list []T) []api.Object {
	objects := make([]api.Object, len(list))
	for i, o := range list {
		objects[i] = o
	}
	return objects
}

// upkeep is one look at all objects.
type upkeep struct {
	server *Server
	levels map[string]bool // that are there, or will be
	writes []storage.Write
	err    error
}

func (u *upkeep) add(writes []storage.Write, err error) {
	u.writes, u.err = append(u.writes, writes...), errors.Join(u.err, err)
}

func (u *upkeep) round(ctx context.Context, res *api.Resource, wanted []api.Object) {
	stored, err := u.server.collection(res).List(ctx, storage.ListRequest{At: storage.At{Any: true}})
	if err != nil {
		u.add(nil, err)
		return
	}
	missing := map[string]api.Object{}
	for _, want := range wanted {
		missing[want.GetName()] = want
	}
	for _, o := range stored.Items {
		want := missing[o.Key.Name]
		delete(missing, o.Key.Name)
		have, err := decode(res, o)
		if err != nil {
			u.add(nil, err)
			continue
		}
		if want == nil && have.GetAnnotations()[flowv1.AutoUpdateAnnotationKey] == "true" {
			u.add([]storage.Write{{Op: storage.Delete, Key: o.Key, Expect: o.Revision}}, nil)
			continue
		}
		u.note(have)
		u.mend(res, o, have, want)
	}
	for _, want := range wanted {
		if missing[want.GetName()] != nil {
			u.note(want)
			u.create(res, want)
		}
	}
}

// note remembers the levels, for their schemas are looked at next.
func (u *upkeep) note(o api.Object) {
	if _, ok := o.(*flowv1.PriorityLevelConfiguration); ok {
		u.levels[o.GetName()] = true
	}
}

func (u *upkeep) create(res *api.Resource, o api.Object) {
	w, err := u.server.firstWrite(res, o)
	if schema, ok := o.(*flowv1.FlowSchema); ok && err == nil {
		u.dangle(schema)
		w.Value, err = encode(res, schema)
	}
	u.add([]storage.Write{w}, err)
}

func (u *upkeep) dangle(s *flowv1.FlowSchema) {
	dangle(s, u.levels[s.Spec.PriorityLevelConfiguration.Name], u.server.now())
}

// mend is the write of what is not as it should be: first of the spec and, when that is right, of the status.
func (u *upkeep) mend(res *api.Resource, o *storage.Object, have, want api.Object) {
	if want != nil {
		writes, err := u.server.amend(res, o, func(obj api.Object) { maintain(obj, want) })
		u.add(writes, err)
		if len(writes) > 0 || err != nil {
			return
		}
	}
	if _, ok := have.(*flowv1.FlowSchema); !ok {
		return
	}
	as := u.server.self(res)
	as.subresource = "status"
	u.add(u.server.amendAs(as, res, o, func(obj api.Object) { u.dangle(obj.(*flowv1.FlowSchema)) }))
}

// maintain makes a stored object what we want it to be, unless that has become someone else's business:
// the annotation says so or, where there is none, that the spec has been changed.
func maintain(obj, want api.Object) {
	ours, err := strconv.ParseBool(obj.GetAnnotations()[flowv1.AutoUpdateAnnotationKey])
	if err != nil {
		ours = obj.GetGeneration() == 1
	}
	ours = ours || isMandatory(obj.GetName())
	annotations := obj.GetAnnotations()
	if text, ok := annotations[flowv1.AutoUpdateAnnotationKey]; !ok || err != nil || text != strconv.FormatBool(ours) {
		meta, _ := objectMeta(obj)
		metav1.SetMetaDataAnnotation(meta, flowv1.AutoUpdateAnnotationKey, strconv.FormatBool(ours))
	}
	if !ours {
		return
	}
	switch o := obj.(type) {
	case *flowv1.FlowSchema:
		o.Spec = want.(*flowv1.FlowSchema).Spec
	case *flowv1.PriorityLevelConfiguration:
		o.Spec = *api.MandatorySpec(want.(*flowv1.PriorityLevelConfiguration), o)
	}
}

func isMandatory(name string) bool {
	return name == flowv1.FlowSchemaNameExempt || name == flowv1.FlowSchemaNameCatchAll // the levels have the same names
}
