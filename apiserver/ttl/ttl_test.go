package ttl_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/apiserver/ttl"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

const (
	lifetimes = "claims/lifetimes"
	timers    = "claims/timers"
	servers   = "claims/servers"

	patience = 30 * time.Second
	tick     = 10 * time.Millisecond
)

// kind returns the kind ConfigMap.
func kind() *api.Resource {
	return &api.Resource{
		Names: api.Names{Version: "v1", Kind: "ConfigMap", Plural: "configmaps", Namespaced: true},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.ConfigMap{} },
			NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		},
	}
}

// house is a store with objects of one kind, some of them with lifetimes.
type house struct {
	loopback.Client // for the methods that are not called
	*ttl.Lifetimes
	t     *testing.T
	store *storage.Store
	res   *api.Resource

	mu      sync.Mutex
	refuse  error // returned by the next deletion
	deleted []string
}

func build(t *testing.T) *house {
	t.Helper()
	backend, err := etcd.StartEmbedded(t.Context(), etcd.EmbeddedOptions{Dir: t.TempDir(), Unsafe: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backend.Close()) })
	store, err := storage.Open(t.Context(), backend, storage.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	h := &house{t: t, store: store, res: kind()}
	h.Lifetimes = ttl.New(ttl.Options{Store: store, Registry: api.NewRegistry(h.res), Objects: h, Servers: servers,
		EventTTL: time.Hour, DeleteTimeout: patience, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	return h
}

// Collection implements loopback.Client.
func (h *house) Collection(res *api.Resource) *storage.Collection {
	return h.store.Collection(res.Collection(), storage.CollectionOptions{})
}

// Delete implements loopback.Client.
func (h *house) Delete(ctx context.Context, res *api.Resource, o *storage.Object) error {
	h.mu.Lock()
	refusal := h.refuse
	h.refuse = nil
	h.mu.Unlock()
	if refusal != nil {
		return refusal
	}
	old, err := encoding.Decode(ctx, res, o)
	if err != nil {
		return err
	}
	_, err = h.store.Commit(ctx, append([]storage.Write{{Op: storage.Delete, Key: o.Key, Expect: o.Revision}},
		ttl.End(res, o.Key, old)...)...)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.deleted = append(h.deleted, o.Key.Name)
	}
	return err
}

func (h *house) gone() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.deleted...)
}

func (h *house) key(name string) storage.Key {
	return storage.Key{Collection: h.res.Collection(), Namespace: "default", Name: name}
}

// create stores an object with the given time to live.
func (h *house) create(name, lasts string) {
	h.t.Helper()
	obj := object(name, lasts)
	effect, err := h.Effect(h.t.Context(), ttl.Change{Kind: h.res, Key: h.key(name), Object: obj, Rights: rights(true)})
	require.NoError(h.t, err)
	doc, err := encoding.Encode(h.res, obj)
	require.NoError(h.t, err)
	result, err := h.store.Commit(h.t.Context(), append([]storage.Write{{Op: storage.Create, Key: h.key(name),
		Value: doc}}, effect.Writes...)...)
	require.NoError(h.t, err)
	// Later calls read this write from memory.
	_, err = h.store.Collection(lifetimes, storage.CollectionOptions{}).List(h.t.Context(),
		storage.ListRequest{At: storage.At{Revision: result.Revision}})
	require.NoError(h.t, err)
}

// end deletes an object's timer, as the end of its lease does.
func (h *house) end(name string) {
	h.t.Helper()
	_, err := h.store.Commit(h.t.Context(), storage.Write{Op: storage.Delete, Expect: storage.AnyRevision,
		Key: storage.Key{Collection: timers, Name: strings.ReplaceAll(h.key(name).String(), "/", "%")}})
	require.NoError(h.t, err)
}

// run runs the expirer as a server of that name until the test ends.
func (h *house) run(name string) {
	ctx, stop := context.WithCancel(h.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx, name)
	}()
	h.t.Cleanup(func() { stop(); <-done })
}

func (h *house) left(collection string) int {
	list, err := h.store.Collection(collection, storage.CollectionOptions{}).List(h.t.Context(), storage.ListRequest{})
	require.NoError(h.t, err)
	return len(list.Items)
}

func object(name, lasts string) *corev1.ConfigMap {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	if lasts != "" {
		obj.Annotations = map[string]string{ttl.Annotation: lasts}
	}
	return obj
}

// rights implements ttl.Rights with a fixed answer.
type rights bool

var errForbidden = errors.New("forbidden")

func (r rights) MayDelete(context.Context) bool { return bool(r) }

func (r rights) AuthorizeDelete(context.Context) error {
	if !r {
		return errForbidden
	}
	return nil
}

func TestEffect_ForEachChange(t *testing.T) {
	t.Parallel()
	h := build(t)
	h.create("counted", "10m")
	events := kind()
	events.Expires = true
	deleting := func(obj *corev1.ConfigMap) *corev1.ConfigMap {
		obj.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		return obj
	}
	const none, begins, ends = 0, 1, 2
	for name, c := range map[string]struct {
		kind     *api.Resource
		obj, old *corev1.ConfigMap
		denied   bool
		want     ttl.Effect
		writes   int
		refused  error
		silent   bool // rights are not queried
	}{
		"none":            {obj: object("a", ""), silent: true},
		"none, as before": {obj: object("a", ""), old: object("a", ""), silent: true},
		"a new one": {obj: object("a", "10m"),
			want: ttl.Effect{Renewed: true}, writes: begins},
		"a new one without rights": {obj: object("a", "10m"), denied: true, refused: errForbidden},
		"renewed": {obj: object("a", "10m"), old: object("a", "10m"),
			want: ttl.Effect{Renewed: true}, writes: begins},
		"changed": {obj: object("a", "5m"), old: object("a", "10m"),
			want: ttl.Effect{Renewed: true}, writes: begins},
		"changed without rights": {obj: object("a", "5m"), old: object("a", "10m"), denied: true, refused: errForbidden},
		"left by a controller":   {obj: object("counted", "10m"), old: object("counted", "10m"), denied: true},
		"not counted yet": {obj: object("a", "10m"), old: object("a", "10m"), denied: true,
			want: ttl.Effect{Renewed: true}, writes: begins},
		"taken back":           {obj: object("a", ""), old: object("a", "10m"), denied: true, writes: ends},
		"deletion begins":      {obj: deleting(object("a", "10m")), old: object("a", "10m"), writes: ends},
		"deletion had begun":   {obj: deleting(object("a", "10m")), old: deleting(object("a", "10m"))},
		"set on a deleted one": {obj: deleting(object("a", "5m")), old: deleting(object("a", ""))},
		"of an event":          {kind: events, obj: object("a", ""), want: ttl.Effect{Renewed: true, Lease: time.Hour}},
		"of an event that names one": {kind: events, obj: object("a", "10m"),
			want: ttl.Effect{Renewed: true, Lease: 10 * time.Minute}},
	} {
		if c.kind == nil {
			c.kind = h.res
		}
		var old api.Object
		if c.old != nil {
			old = c.old
		}
		require.Equal(t, !c.silent, ttl.Concerns(c.kind, c.obj, old), name)
		got, err := h.Effect(t.Context(), ttl.Change{Kind: c.kind, Key: h.key(c.obj.Name), Object: c.obj, Old: old,
			Rights: rights(!c.denied)})
		require.ErrorIs(t, err, c.refused, name)
		writes := got.Writes
		got.Writes = nil
		require.Equal(t, c.want, got, name)
		if c.writes == none {
			require.Empty(t, writes, name)
			continue
		}
		require.Len(t, writes, 2, name)
		require.Equal(t, lifetimes, writes[0].Key.Collection, name)
		require.Equal(t, timers, writes[1].Key.Collection, name)
		require.Zero(t, writes[0].TTL, "the lifetime outlives the timer")
		require.Equal(t, c.writes == ends, writes[1].Op == storage.Delete, name)
		require.Equal(t, c.writes == begins, writes[1].TTL > 0, name)
	}
	for _, lasts := range []string{"", "soon", "0", "-10m", "999ms", "876001h"} {
		obj := object("a", "x")
		obj.Annotations[ttl.Annotation] = lasts
		_, err := h.Effect(t.Context(), ttl.Change{Kind: h.res, Key: h.key("a"), Object: obj, Rights: rights(true)})
		require.True(t, apierrors.IsInvalid(err), "%q: %v", lasts, err)
	}
}

func TestRun_DeletesExpiredObjects(t *testing.T) {
	t.Parallel()
	h := build(t)
	for _, name := range []string{"before", "after", "stays"} {
		h.create(name, "10h")
	}
	h.end("before")
	h.run("a")
	require.Eventually(t, func() bool { return len(h.gone()) == 1 }, patience, tick, "it ended while no server ran")
	h.end("after")
	require.Eventually(t, func() bool { return len(h.gone()) == 2 }, patience, tick)
	require.Equal(t, []string{"before", "after"}, h.gone())
	require.Equal(t, 1, h.left(lifetimes))
	require.Equal(t, 1, h.left(timers))
}

func TestRun_RetriesAnObjectThatIsWrittenConcurrently(t *testing.T) {
	t.Parallel()
	h := build(t)
	h.create("a", "10h")
	h.refuse = apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("written meanwhile"))
	h.end("a")
	h.run("a")
	require.Eventually(t, func() bool { return len(h.gone()) == 1 }, patience, tick)
}

func TestRun_DeletesTheLifetimeOfADeletedObject(t *testing.T) {
	t.Parallel()
	h := build(t)
	h.create("a", "10h")
	_, err := h.store.Commit(t.Context(), storage.Write{Op: storage.Delete, Key: h.key("a"), Expect: storage.AnyRevision})
	require.NoError(t, err)
	h.end("a")
	h.run("a")
	require.Eventually(t, func() bool { return h.left(lifetimes) == 0 }, patience, tick)
	require.Empty(t, h.gone())
}
