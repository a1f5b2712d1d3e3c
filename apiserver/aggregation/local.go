package aggregation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/discovery"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every group and version that this server serves itself has an APIService without a service, so that clients can list
// them all. They are kept as kube-aggregator's autoregister controller does: those of built-in kinds are created, and
// mended when a server starts; those of custom kinds are kept as they should be, and deleted with their definitions.
// metrics.k8s.io has none, as in Kubernetes: the one that metrics-server brings must not find its place taken.
//
// Each write names the revision that it was made from. Of several servers that see the same need one writes.

const (
	managedLabel = "kube-aggregator.kubernetes.io/automanaged"
	onStart      = "onstart"
	always       = "true"

	// settleFor is how long nothing must have changed before the APIServices are looked at again, but for settleMost
	// times as long at most: a thousand definitions are a few looks.
	settleFor  = 100 * time.Millisecond
	settleMost = 20
	// keepEvery is how often they are looked at if nothing has changed, for writes that failed.
	keepEvery = time.Minute
	// atOnce is how many are written in one transaction.
	atOnce = 64
)

// keepLocal does so until ctx ends.
func (a *Aggregation) keepLocal(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var following sync.WaitGroup
	defer following.Wait()
	for _, kind := range []schema.GroupVersionKind{a.res.GVK(), definitionKind} {
		if res := a.Registry.Snapshot().Kind(kind); res != nil {
			following.Go(func() { a.Objects.Collection(res).Signal(ctx, storage.Scope{}, changed) })
		}
	}
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for first := true; ; {
		err := a.keepOnce(ctx, first)
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("keeping the APIServices of this server's own kinds", "error", err)
		}
		first = first && err != nil
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !settle(ctx, changed) {
			return
		}
	}
}

// settle returns when nothing has changed for a while, or after a few times that; false if ctx has ended.
func settle(ctx context.Context, changed <-chan struct{}) bool {
	for range settleMost {
		pause := time.NewTimer(settleFor)
		select {
		case <-ctx.Done():
			pause.Stop()
			return false
		case <-pause.C:
		}
		select {
		case <-changed:
		default:
			return true
		}
	}
	return true
}

var definitionKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
	Kind: "CustomResourceDefinition"}

// keepOnce makes the writes that the APIServices need now. start says that it is the first time.
func (a *Aggregation) keepOnce(ctx context.Context, start bool) error {
	// What memory has of definitions is at least as new as the APIServices below: none is taken for superfluous because
	// another server saw its definition first.
	list, err := a.Objects.Collection(a.res).List(ctx, storage.ListRequest{At: storage.At{Any: true}, Readable: true})
	if err != nil {
		return err
	}
	if err := a.Settle(ctx); err != nil {
		return err
	}
	missing := localServices(a.Registry.Snapshot())
	var writes []storage.Write
	for _, o := range list.Items {
		var want *wanted
		if w, found := missing[o.Key.Name]; found {
			want = &w
			delete(missing, o.Key.Name)
		}
		more, err := a.mend(o, want, start)
		if err == nil && len(more) == 0 {
			more, err = a.markLocal(o)
		}
		if err != nil {
			return err
		}
		writes = append(writes, more...)
	}
	for _, want := range missing {
		w, err := a.Objects.Create(a.res, want.object())
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	return a.commit(ctx, writes)
}

// wanted is what the APIService of a group and version of this server's own should be.
type wanted struct {
	gv       schema.GroupVersion
	priority discovery.Priority
	managed  string
}

// localServices are the APIServices that a snapshot's kinds should have, by their names.
func localServices(kinds *api.Snapshot) map[string]wanted {
	all := map[string]wanted{}
	for _, res := range kinds.Resources {
		w := wanted{gv: res.GroupVersion(), managed: onStart}
		registered := false
		if w.priority, registered = discovery.Registered(w.gv); !registered {
			if res.Definition == nil {
				continue
			}
			w.priority, w.managed = discovery.Custom, always
		}
		all[w.gv.Version+"."+w.gv.Group] = w
	}
	return all
}

func (w *wanted) spec() apiregistrationv1.APIServiceSpec {
	return apiregistrationv1.APIServiceSpec{Group: w.gv.Group, Version: w.gv.Version,
		GroupPriorityMinimum: w.priority.Group, VersionPriority: w.priority.Version}
}

func (w *wanted) object() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		TypeMeta: metav1.TypeMeta{Kind: "APIService", APIVersion: apiregistrationv1.SchemeGroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Name: w.gv.Version + "." + w.gv.Group,
			Labels: map[string]string{managedLabel: w.managed}},
		Spec: w.spec()}
}

// mend returns the write that a stored APIService needs; want is nil if it should not be there. One without the label
// belongs to whoever made it.
func (a *Aggregation) mend(o *storage.Object, want *wanted, start bool) ([]storage.Write, error) {
	managed := o.Labels.Get(managedLabel)
	if managed != always && (managed != onStart || !start) {
		return nil, nil
	}
	if want == nil {
		return []storage.Write{{Op: storage.Delete, Key: o.Key, Expect: o.Revision}}, nil
	}
	if known := a.lookUp(o.Key.Name); known != nil && known.revision == o.Revision && known.local &&
		known.priority == want.priority {
		return nil, nil // without decoding it
	}
	return a.Objects.Update(a.res, o, "", func(obj api.Object) {
		obj.(*apiregistrationv1.APIService).Spec = want.spec()
	})
}

// markLocal returns the write by which an APIService that has no service, or has it no more, becomes available.
func (a *Aggregation) markLocal(o *storage.Object) ([]storage.Write, error) {
	known := a.lookUp(o.Key.Name)
	if known == nil || known.revision != o.Revision || !known.local || known.reason == "Local" {
		return nil, nil
	}
	return a.Objects.Update(a.res, o, "status", a.res.Status.Reset) // as of a new one
}

func (a *Aggregation) lookUp(name string) *registered {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known[name]
}

// commit makes the writes, many in one transaction. Where one of these is refused, another writer was faster, and they
// are made one by one.
func (a *Aggregation) commit(ctx context.Context, writes []storage.Write) error {
	var failed error
	for some := range slices.Chunk(writes, atOnce) {
		_, err := a.Objects.Commit(ctx, some...)
		if err == nil {
			continue
		}
		if !overtaken(err) {
			return fmt.Errorf("writing APIServices: %w", err)
		}
		for _, w := range some {
			if _, err := a.Objects.Commit(ctx, w); err != nil && !overtaken(err) {
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}

// overtaken reports that the object was changed meanwhile. The watch brings the change.
func overtaken(err error) bool {
	var conflict *storage.Conflict
	return errors.As(err, &conflict) || errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrNotFound)
}

// decode reads a stored APIService.
func (a *Aggregation) decode(ctx context.Context, o *storage.Object) (*apiregistrationv1.APIService, error) {
	obj, err := encoding.Decode(ctx, a.res, o)
	if err != nil {
		return nil, err
	}
	return obj.(*apiregistrationv1.APIService), nil
}
