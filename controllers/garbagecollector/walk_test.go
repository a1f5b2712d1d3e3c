package garbagecollector_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// ownerWalk makes random objects own each other, and deletes them, while the collector runs. It records all
// watch events. A model that knows which objects exist at each revision then checks the record.
type ownerWalk struct {
	*controllertest.Clocked
	metadata metadata.Interface

	mu      sync.Mutex
	objects []*walker
	ours    map[string]bool    // resourceVersions that the walk wrote
	deleted map[types.UID]bool // by the walk
}

// walker is an object that the walk created. It may have been deleted since.
type walker struct {
	resource        schema.GroupVersionResource
	apiVersion      string
	kind            string
	namespace, name string
	uid             types.UID
}

var (
	configMaps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	clusterRoles = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1",
		Resource: "clusterroles"}
)

// TestGarbageCollector_CollectsExactlyTheModelsObjects walks 2,000 steps, or COXSWAIN_WALK_STEPS.
func TestGarbageCollector_CollectsExactlyTheModelsObjects(t *testing.T) {
	t.Parallel()
	steps := controllertest.WalkSteps(t, 2000)
	c := controllertest.NewClockedWith(t, controllers.Settings{}, "garbagecollector")
	w := &ownerWalk{Clocked: c, ours: map[string]bool{}, deleted: map[types.UID]bool{}}
	var err error
	w.metadata, err = metadata.NewForConfig(metadata.ConfigFor(c.Config))
	require.NoError(t, err)
	for _, name := range []string{"one", "two"} {
		c.CreateNamespace(name)
	}
	record := w.record()

	seed := controllertest.NewRandom(t)
	var done atomic.Int64
	var walking sync.WaitGroup
	for range 8 {
		random := rand.New(rand.NewPCG(seed.Uint64(), seed.Uint64()))
		walking.Go(func() {
			for i := range steps / 8 {
				w.step(random)
				done.Add(1)
				if i%100 == 0 {
					w.Step(time.Second) // for the collector's retries
				}
			}
		})
	}
	walking.Wait()
	w.settle(steps)
	w.quiet()
	require.Empty(t, w.pending(), "an idle collector stays idle")
	w.judge(record())
	t.Logf("%d steps, %d objects, %d deleted by the walk", done.Load(), len(w.objects), len(w.deleted))
}

// step takes one random action of a user.
func (w *ownerWalk) step(random *rand.Rand) {
	victim := w.any(random)
	switch n := random.IntN(10); {
	case victim == nil || n < 4:
		w.create(random)
	case n < 7:
		w.reown(random, victim)
	default:
		policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
			metav1.DeletePropagationOrphan}
		w.delete(victim, policies[random.IntN(3)])
	}
}

// any returns one of the last 200 objects. Many of them still exist.
func (w *ownerWalk) any(random *rand.Rand) *walker {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.objects) == 0 {
		return nil
	}
	return w.objects[len(w.objects)-1-random.IntN(min(len(w.objects), 200))]
}

// owners returns up to three references: to objects that exist, that are deleted, that are in another
// namespace, or that never existed.
func (w *ownerWalk) owners(random *rand.Rand) []metav1.OwnerReference {
	var refs []metav1.OwnerReference
	for range random.IntN(4) {
		o := w.any(random)
		if o == nil || slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == o.uid }) {
			continue
		}
		ref := metav1.OwnerReference{APIVersion: o.apiVersion, Kind: o.kind, Name: o.name, UID: o.uid,
			BlockOwnerDeletion: new(random.IntN(2) == 0)}
		if random.IntN(40) == 0 {
			ref.UID = types.UID(fmt.Sprintf("never-%d", random.Int64()))
		}
		refs = append(refs, ref)
	}
	return refs
}

var walkers atomic.Int64

func (w *ownerWalk) create(random *rand.Rand) {
	name := fmt.Sprintf("walker-%d", walkers.Add(1))
	meta := metav1.ObjectMeta{Name: name, OwnerReferences: w.owners(random)}
	o := &walker{resource: configMaps, apiVersion: "v1", kind: "ConfigMap", name: name}
	var created metav1.Object
	var err error
	if random.IntN(5) == 0 {
		o.resource, o.apiVersion, o.kind = clusterRoles, "rbac.authorization.k8s.io/v1", "ClusterRole"
		// A cluster-scoped object may only have cluster-scoped owners.
		meta.OwnerReferences = slices.DeleteFunc(meta.OwnerReferences, func(r metav1.OwnerReference) bool {
			return r.Kind != "ClusterRole"
		})
		created, err = w.Client.RbacV1().ClusterRoles().Create(w.Context(), &rbacv1.ClusterRole{ObjectMeta: meta},
			metav1.CreateOptions{})
	} else {
		o.namespace = []string{"one", "one", "one", "two"}[random.IntN(4)]
		created, err = w.Client.CoreV1().ConfigMaps(o.namespace).Create(w.Context(),
			&corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
	}
	if err != nil {
		w.Errorf("create: %v", err)
		return
	}
	o.uid = created.GetUID()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects = append(w.objects, o)
}

func (w *ownerWalk) reown(random *rand.Rand, o *walker) {
	refs := w.owners(random)
	if o.namespace == "" {
		refs = slices.DeleteFunc(refs, func(r metav1.OwnerReference) bool { return r.Kind != "ClusterRole" })
	}
	patch := controllertest.JSON(map[string]any{"metadata": map[string]any{"uid": o.uid, "ownerReferences": refs}})
	// The resourceVersion of the patch is known only afterwards, so the record is judged at the end.
	objects := w.metadata.Resource(o.resource).Namespace(o.namespace)
	after, err := objects.Patch(w.Context(), o.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	if err != nil {
		w.Errorf("patch %s: %v", o.name, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ours[after.ResourceVersion] = true
}

func (w *ownerWalk) delete(o *walker, policy metav1.DeletionPropagation) {
	w.mu.Lock()
	w.deleted[o.uid] = true
	w.mu.Unlock()
	err := w.metadata.Resource(o.resource).Namespace(o.namespace).Delete(w.Context(), o.name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: metav1.NewUIDPreconditions(string(o.uid)),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Errorf("delete %s: %v", o.name, err)
	}
}

// living returns the walkers that exist.
func (w *ownerWalk) living() map[types.UID]*metav1.PartialObjectMetadata {
	all := map[types.UID]*metav1.PartialObjectMetadata{}
	for _, r := range []schema.GroupVersionResource{configMaps, clusterRoles} {
		list, err := w.metadata.Resource(r).List(w.Context(), metav1.ListOptions{})
		require.NoError(w, err)
		for i := range list.Items {
			if isWalker(&list.Items[i]) {
				all[list.Items[i].UID] = &list.Items[i]
			}
		}
	}
	return all
}

func isWalker(m metav1.Object) bool { return len(m.GetName()) > 7 && m.GetName()[:7] == "walker-" }

// pending describes the objects that the collector should still delete or patch, and the objects being deleted.
func (w *ownerWalk) pending() []string {
	all := w.living()
	var pending []string
	for _, m := range all {
		solid := 0
		for _, ref := range m.OwnerReferences {
			if o := all[ref.UID]; o != nil && names(ref, o, m) {
				solid++
			}
		}
		if m.DeletionTimestamp != nil || solid < len(m.OwnerReferences) {
			pending = append(pending, fmt.Sprintf("%s/%s: %d of %d owners, deleted %v, finalizers %v", m.Namespace,
				m.Name, solid, len(m.OwnerReferences), m.DeletionTimestamp, m.Finalizers))
		}
	}
	return pending
}

// names reports whether ref, in a dependent, is a valid reference to the owner.
func names(ref metav1.OwnerReference, owner, dependent metav1.Object) bool {
	return ref.UID == owner.GetUID() && ref.Name == owner.GetName() &&
		(owner.GetNamespace() == "" || owner.GetNamespace() == dependent.GetNamespace())
}

// settle waits until nothing is pending. Objects whose reconciliation failed several times wait for their
// back-off on the simulated clock; a long walk leaves many.
func (w *ownerWalk) settle(steps int) {
	var pending []string
	for began := time.Now(); time.Since(began) < time.Minute+time.Duration(steps)*10*time.Millisecond; {
		if pending = w.pending(); len(pending) == 0 {
			return
		}
		w.Step(10 * time.Second)
	}
	require.Fail(w, "not idle", "%d are pending: %s", len(pending),
		strings.Join(pending[:min(len(pending), 20)], "\n"))
}

// quiet waits until the collector has reconciled everything that was created before the call.
func (w *ownerWalk) quiet() {
	probe, err := w.Client.CoreV1().ConfigMaps("one").Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "probe", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "never",
			UID: "never"}},
	}}, metav1.CreateOptions{})
	require.NoError(w, err)
	w.Passing(time.Second, "the probe is collected", func() bool {
		_, err := w.Client.CoreV1().ConfigMaps("one").Get(w.Context(), probe.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// recorded is a watch event of an object at a revision.
type recorded struct {
	revision int64
	kind     watch.EventType
	object   *metav1.PartialObjectMetadata
}

// record watches the walkers. The returned function stops the watches and returns all events in the order of
// their revisions.
func (w *ownerWalk) record() func() []recorded {
	var mu sync.Mutex
	var events []recorded
	var seen [2]atomic.Int64
	ctx, cancel := context.WithCancel(w.Context())
	var watching sync.WaitGroup
	for i, r := range []schema.GroupVersionResource{configMaps, clusterRoles} {
		list, err := w.metadata.Resource(r).List(ctx, metav1.ListOptions{})
		require.NoError(w, err)
		stream, err := w.metadata.Resource(r).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		require.NoError(w, err)
		watching.Go(func() {
			defer stream.Stop()
			for e := range stream.ResultChan() {
				m, ok := e.Object.(*metav1.PartialObjectMetadata)
				if !ok && ctx.Err() != nil {
					return
				}
				if !ok {
					w.Errorf("the watch of %s ended: %v", r.Resource, describe(e.Object))
					return
				}
				revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
				if err != nil {
					w.Errorf("resourceVersion %q", m.ResourceVersion)
					return
				}
				if isWalker(m) {
					mu.Lock()
					events = append(events, recorded{revision, e.Type, m})
					mu.Unlock()
				}
				seen[i].Store(revision)
			}
		})
	}
	return func() []recorded {
		// The streams are complete once they show the two objects that are created here.
		end, err := w.Client.CoreV1().ConfigMaps("one").Create(w.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "end"}}, metav1.CreateOptions{})
		require.NoError(w, err)
		last, err := w.Client.RbacV1().ClusterRoles().Create(w.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "end"}}, metav1.CreateOptions{})
		require.NoError(w, err)
		w.Eventually("all is recorded", func() bool {
			return fmt.Sprint(seen[0].Load()) == end.ResourceVersion &&
				fmt.Sprint(seen[1].Load()) == last.ResourceVersion
		})
		cancel()
		watching.Wait()
		slices.SortStableFunc(events, func(a, b recorded) int { return cmp.Compare(a.revision, b.revision) })
		return events
	}
}

func describe(o runtime.Object) string { return string(controllertest.JSON(o)) }

// judge replays the record against a model of the objects at each revision. An object that the walk did not
// delete may only be deleted, and may only lose references, if its owners are gone or wait for their
// dependents.
func (w *ownerWalk) judge(events []recorded) {
	state := map[types.UID]*metav1.PartialObjectMetadata{}
	has := func(m *metav1.PartialObjectMetadata, finalizer string) bool {
		return slices.Contains(m.Finalizers, finalizer)
	}
	// waited has the objects that were in foreground deletion at any time. A second deletion with another
	// policy ends that, but the collector may still act on a decision from before.
	waited := map[types.UID]bool{}
	// may reports whether the collector may take a dependent from an owner, by the owner's present and past
	// state.
	may := func(ref metav1.OwnerReference, m *metav1.PartialObjectMetadata, orphaning bool) bool {
		o := state[ref.UID]
		return o == nil || !names(ref, o, m) || o.DeletionTimestamp != nil &&
			(waited[ref.UID] || orphaning && has(o, metav1.FinalizerOrphanDependents))
	}
	collected := 0
	for _, e := range events {
		before := state[e.object.UID]
		begins := e.kind == watch.Deleted || e.object.DeletionTimestamp != nil
		if before != nil && before.DeletionTimestamp == nil && begins && !w.deleted[e.object.UID] {
			collected++
			require.NotEmpty(w, before.OwnerReferences, "%s was deleted without an owner", e.object.Name)
			for _, ref := range before.OwnerReferences {
				require.True(w, may(ref, before, false), "%s was deleted at %d, while its owner lives: %s",
					e.object.Name, e.revision, describe(state[ref.UID]))
			}
		}
		if before != nil && e.kind == watch.Modified && !w.ours[e.object.ResourceVersion] {
			for _, ref := range before.OwnerReferences {
				if !slices.ContainsFunc(e.object.OwnerReferences, func(r metav1.OwnerReference) bool {
					return r.UID == ref.UID
				}) {
					require.True(w, may(ref, before, true), "%s lost its owner %s at %d, which exists", e.object.Name,
						ref.Name, e.revision)
				}
			}
		}
		if e.kind == watch.Deleted {
			delete(state, e.object.UID)
		} else {
			state[e.object.UID] = e.object
			waited[e.object.UID] = waited[e.object.UID] || e.object.DeletionTimestamp != nil &&
				has(e.object, metav1.FinalizerDeleteDependents)
		}
	}
	living := w.living()
	require.Len(w, living, len(state), "the record is complete")
	for uid := range w.deleted {
		require.NotContains(w, living, uid, "the walk deleted it")
	}
	require.NotZero(w, collected)
}
