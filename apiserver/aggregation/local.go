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
	"github.com/coxswain-dev/coxswain/api/discoverydocs"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every group and version that this server serves itself has an APIService without a service, so that clients can
// list them all. keepLocal maintains these APIServices as kube-aggregator's autoregister controller does. The ones
// for built-in kinds are created when missing, but only repaired when a server starts. The ones for custom kinds
// are repaired at any time and deleted with their definitions. As in Kubernetes, metrics.k8s.io has none, so that
// the name is free for the APIService of metrics-server.
//
// Each write names the revision it is based on. When several servers see the same need, only one of them writes.

const (
	managedLabel = "kube-aggregator.kubernetes.io/automanaged"
	onStart      = "onstart"
	always       = "true"

	// keepLocal waits for a quiet period of settleFor before it looks at the APIServices again, but at most
	// settleMost times as long. A thousand new definitions then cause only a few passes.
	settleFor  = 100 * time.Millisecond
	settleMost = 20
	// keepEvery is the interval between passes without changes. They retry failed writes.
	keepEvery = time.Minute
	// atOnce is the number of writes in one transaction.
	atOnce = 64
)

// keepLocal maintains the APIServices of local groups until ctx ends.
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

// settle waits for a quiet period of settleFor, but at most settleMost times as long. It returns false if ctx has
// ended.
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

// keepOnce makes the writes that the APIServices currently need. start is set for the first pass.
func (a *Aggregation) keepOnce(ctx context.Context, start bool) error {
	// Settle runs after the list, so the definitions are at least as recent as the listed APIServices. Otherwise an
	// APIService could look superfluous just because another server saw its definition first.
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
		more, err := a.mend(ctx, o, want, start)
		if err == nil && len(more) == 0 {
			more, err = a.markLocal(ctx, o)
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

// wanted describes the desired APIService of a local group and version.
type wanted struct {
	gv       schema.GroupVersion
	priority discoverydocs.Priority
	managed  string
}

// localServices returns the APIServices that the kinds of a snapshot should have, by name.
func localServices(kinds *api.Snapshot) map[string]wanted {
	all := map[string]wanted{}
	for _, res := range kinds.Resources {
		w := wanted{gv: res.GroupVersion(), managed: onStart}
		registered := false
		if w.priority, registered = discoverydocs.Registered(w.gv); !registered {
			if res.Definition == nil {
				continue
			}
			w.priority, w.managed = discoverydocs.Custom, always
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

// mend returns the write that a stored APIService needs, if any. want is nil if the APIService should not exist. An
// APIService without the label belongs to a user and is left alone.
func (a *Aggregation) mend(ctx context.Context, o *storage.Object, want *wanted, start bool) (
	[]storage.Write, error) {
	managed := o.Labels.Get(managedLabel)
	if managed != always && (managed != onStart || !start) {
		return nil, nil
	}
	if want == nil {
		return []storage.Write{{Op: storage.Delete, Key: o.Key, Expect: o.Revision}}, nil
	}
	if cached := a.lookUp(o.Key.Name); cached != nil && cached.revision == o.Revision && cached.local &&
		cached.priority == want.priority {
		return nil, nil // already correct: skip the decoding
	}
	return a.Objects.Update(ctx, a.res, o, "", func(obj api.Object) {
		obj.(*apiregistrationv1.APIService).Spec = want.spec()
	})
}

// markLocal returns the write that marks an APIService without a service as available. The APIService may have had
// a service before.
func (a *Aggregation) markLocal(ctx context.Context, o *storage.Object) ([]storage.Write, error) {
	cached := a.lookUp(o.Key.Name)
	if cached == nil || cached.revision != o.Revision || !cached.local || cached.reason == "Local" {
		return nil, nil
	}
	return a.Objects.Update(ctx, a.res, o, "status", a.res.Status.Reset) // as for a new one
}

// lookUp returns the APIService of that name in memory, or nil.
func (a *Aggregation) lookUp(name string) *registered {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known[name]
}

// commit makes the writes, up to atOnce in one transaction. A conflict fails the whole transaction, so commit then
// retries its writes one by one and skips the ones that lost to another writer.
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

// overtaken reports whether err means that another writer changed the object first. The watch delivers that change.
func overtaken(err error) bool {
	var conflict *storage.Conflict
	return errors.As(err, &conflict) || errors.Is(err, storage.ErrExists) || errors.Is(err, storage.ErrNotFound)
}

// decode decodes a stored APIService.
func (a *Aggregation) decode(ctx context.Context, o *storage.Object) (*apiregistrationv1.APIService, error) {
	obj, err := encoding.Decode(ctx, a.res, o)
	if err != nil {
		return nil, err
	}
	return obj.(*apiregistrationv1.APIService), nil
}
