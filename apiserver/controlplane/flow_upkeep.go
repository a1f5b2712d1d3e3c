package controlplane

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	flowv1 "k8s.io/api/flowcontrol/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every server maintains the objects of flow control, when they change and once a minute: mandatory ones exist and
// have their fixed specs; suggested ones exist, and have our specs unless a user has taken them over; objects of ours
// that are no longer suggested are deleted; and the status of a schema reports whether its level exists.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#maintenance-of-the-mandatory-and-suggested-configuration-objects
//
// Each write names the revision that it was made from: if several servers see the same need, one of them writes. The
// writes of the others fail, and the watch brings them the change.

const (
	upkeepEvery = time.Minute
	// maxUpkeepWrites is the number of writes of one object in that time: servers of different releases, which disagree
	// about it, would undo each other's writes for ever.
	maxUpkeepWrites = 6
)

// KeepFlowControl maintains the objects of flow control until ctx ends.
func (c *ControlPlane) KeepFlowControl(ctx context.Context) {
	if FlowKinds(c.Registry.Snapshot()) == nil {
		return
	}
	changed := make(chan struct{}, 1)
	var following sync.WaitGroup
	defer following.Wait()
	for _, res := range FlowKinds(c.Registry.Snapshot()) {
		following.Go(func() { c.Objects.Collection(res).Signal(ctx, storage.Scope{}, changed) })
	}
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	written := map[storage.Key]int{}
	for {
		writes, err := c.flowUpkeep(ctx)
		for _, w := range writes {
			if written[w.Key]++; written[w.Key] > maxUpkeepWrites {
				continue
			}
			if _, failed := c.Objects.Commit(ctx, w); failed != nil && !overtaken(failed) {
				err = errors.Join(err, failed)
			}
		}
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("cannot maintain the objects of flow control", "err", err)
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

// overtaken reports whether a commit failed because the object was changed meanwhile. The watch brings the change.
func overtaken(err error) bool {
	var conflict *storage.Conflict
	return errors.As(err, &conflict) || errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrNotFound)
}

// FlowKinds returns the registrations of priority levels and flow schemas, nil where they are not served.
func FlowKinds(kinds *api.Snapshot) []*api.Resource {
	levels, schemas := kinds.Kind(flowv1.SchemeGroupVersion.WithKind("PriorityLevelConfiguration")),
		kinds.Kind(flowv1.SchemeGroupVersion.WithKind("FlowSchema"))
	if levels == nil || schemas == nil {
		return nil
	}
	return []*api.Resource{levels, schemas}
}

// missingFlowControl returns the writes that create the objects that this cluster lacks.
func (c *ControlPlane) missingFlowControl(ctx context.Context) ([]storage.Write, error) {
	writes, err := c.flowUpkeep(ctx)
	return slices.DeleteFunc(writes, func(w storage.Write) bool { return w.Op != storage.Create }), err
}

// flowUpkeep returns the writes that the objects in memory need.
func (c *ControlPlane) flowUpkeep(ctx context.Context) ([]storage.Write, error) {
	kinds := FlowKinds(c.Registry.Snapshot())
	if kinds == nil {
		return nil, nil
	}
	levels, schemas := flowControl()
	u := &upkeep{controlPlane: c, levels: map[string]bool{}}
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

// upkeep compares all objects once with their expected states, and collects the writes.
type upkeep struct {
	controlPlane *ControlPlane
	levels       map[string]bool // the ones that exist, or will
	writes       []storage.Write
	err          error
}

func (u *upkeep) add(writes []storage.Write, err error) {
	u.writes, u.err = append(u.writes, writes...), errors.Join(u.err, err)
}

func (u *upkeep) round(ctx context.Context, res *api.Resource, expected []api.Object) {
	objects := u.controlPlane.Objects.Collection(res)
	stored, err := objects.List(ctx, storage.ListRequest{At: storage.At{Any: true}, Readable: true})
	if err != nil {
		u.add(nil, err)
		return
	}
	missing := map[string]api.Object{}
	for _, want := range expected {
		missing[want.GetName()] = want
	}
	for _, o := range stored.Items {
		want := missing[o.Key.Name]
		delete(missing, o.Key.Name)
		have, err := encoding.Decode(ctx, res, o)
		if err != nil {
			u.add(nil, err)
			continue
		}
		if want == nil && have.GetAnnotations()[flowv1.AutoUpdateAnnotationKey] == "true" {
			u.add([]storage.Write{{Op: storage.Delete, Key: o.Key, Expect: o.Revision}}, nil)
			continue
		}
		u.note(have)
		u.repair(ctx, res, o, have, want)
	}
	for _, want := range expected {
		if missing[want.GetName()] == nil {
			continue
		}
		u.note(want)
		if objects.DamagedIn(storage.Scope{Name: want.GetName()}) == nil { // otherwise it exists and cannot be read
			u.create(res, want)
		}
	}
}

// note remembers the levels, because the schemas that refer to them are compared next.
func (u *upkeep) note(o api.Object) {
	if _, ok := o.(*flowv1.PriorityLevelConfiguration); ok {
		u.levels[o.GetName()] = true
	}
}

func (u *upkeep) create(res *api.Resource, o api.Object) {
	w, err := u.controlPlane.Objects.Create(res, o)
	if schema, ok := o.(*flowv1.FlowSchema); ok && err == nil {
		u.dangle(schema)
		w.Value, err = encoding.Encode(res, schema)
	}
	u.add([]storage.Write{w}, err)
}

func (u *upkeep) dangle(s *flowv1.FlowSchema) {
	dangle(s, u.levels[s.Spec.PriorityLevelConfiguration.Name], u.controlPlane.now())
}

// repair adds the write that the object needs: of its spec or, if that is right, of its status.
func (u *upkeep) repair(ctx context.Context, res *api.Resource, o *storage.Object, have, want api.Object) {
	if want != nil {
		writes, err := u.controlPlane.Objects.Update(ctx, res, o, "", func(obj api.Object) { maintain(obj, want) })
		u.add(writes, err)
		if len(writes) > 0 || err != nil {
			return
		}
	}
	if _, ok := have.(*flowv1.FlowSchema); !ok {
		return
	}
	u.add(u.controlPlane.Objects.Update(ctx, res, o, "status",
		func(obj api.Object) { u.dangle(obj.(*flowv1.FlowSchema)) }))
}

// maintain gives a stored object our spec, unless a user has taken it over: the annotation records that. Without the
// annotation, a changed spec means the same.
func maintain(obj, want api.Object) {
	ours, err := strconv.ParseBool(obj.GetAnnotations()[flowv1.AutoUpdateAnnotationKey])
	if err != nil {
		ours = obj.GetGeneration() == 1
	}
	ours = ours || isMandatory(obj.GetName())
	annotations := obj.GetAnnotations()
	if text, ok := annotations[flowv1.AutoUpdateAnnotationKey]; !ok || err != nil || text != strconv.FormatBool(ours) {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[flowv1.AutoUpdateAnnotationKey] = strconv.FormatBool(ours)
		obj.SetAnnotations(annotations)
	}
	if !ours {
		return
	}
	switch o := obj.(type) {
	case *flowv1.FlowSchema:
		o.Spec = want.(*flowv1.FlowSchema).Spec
	case *flowv1.PriorityLevelConfiguration:
		o.Spec = *mandatory.Spec(want.(*flowv1.PriorityLevelConfiguration), o)
	}
}

func isMandatory(name string) bool {
	// the levels have the same names
	return name == flowv1.FlowSchemaNameExempt || name == flowv1.FlowSchemaNameCatchAll
}
