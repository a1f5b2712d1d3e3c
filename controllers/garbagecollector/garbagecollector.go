// Package garbagecollector deletes objects that have lost their last owner.
//
// Objects name their owners in metadata.ownerReferences. From the metadata of all objects that can be listed,
// watched and deleted, the collector builds a graph (graph.go, fed by monitors.go). When an object changes or
// is deleted, each object that may have to be deleted therefore is reconciled:
//
//   - An object is deleted once none of its owners exists. The graph may lag, so a missing node
//     does not prove that an owner is absent: the API server is asked (owners.go). While
//     discovery does not know the owner's kind, the object is left alone.
//   - An object that has lost some of its owners keeps only the references to the others.
//   - An owner deleted in the foreground (finalizer "foregroundDeletion") waits until its
//     dependents with blockOwnerDeletion are gone. They are deleted in the foreground too.
//   - An owner deleted with orphaning (finalizer "orphan") is released when no dependent names
//     it any more. The collector removes these references.
//
// Deletes and patches carry the uid and the resourceVersion of the object that was judged. The
// server rejects a request that is based on an outdated view, and the object is judged again;
// so no second read is needed before a write.
package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/lru"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const (
	// parallel bounds the concurrent requests for the dependents of one owner.
	parallel = 20
	// rememberAbsent bounds the cache of owners that do not exist. An entry never becomes wrong: uids are not
	// reused.
	rememberAbsent = 1000
)

type collector struct {
	*controller.Controller
	client   func() metadata.Interface
	graph    *graph
	monitors *monitors
	absent   *lru.Cache // ownerLocations that do not exist
	unknown  *lru.Cache // hashes of the unknown kinds that have been logged
	seed     maphash.Seed
	recorder record.EventRecorder
	// slow reconciles objects with many owners to look up; inquiries keeps their partial results. See
	// owners.go.
	slow      *controller.Controller
	inquiries inquiries
}

// ownerLocation identifies an owner by a dependent's reference and the namespace where the owner must be.
type ownerLocation struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

// New returns the controller. Its keys are the uids of objects.
func New(env *controller.Env) (*controller.Controller, error) {
	g := &collector{
		client: env.Metadata, graph: newGraph(), absent: lru.New(rememberAbsent),
		unknown: lru.New(rememberAbsent), seed: maphash.MakeSeed(),
		recorder: env.Recorder("garbage-collector-controller"),
	}
	g.inquiries.byUID = map[types.UID]*inquiry{}
	g.Controller = controller.New(env, "garbagecollector", g.reconcile)
	g.slow = controller.New(env, "garbagecollector-owners", g.judgeSlowly)
	g.AddRunnable(g.slow.Run)
	g.AddProbe(g.slow.Busy)
	g.monitors = newMonitors(env, g)
	g.AddRunnable(g.monitors.run)
	g.AddProbe(g.monitors.busy)
	g.NeedsSync(g.monitors)
	g.Debug = g
	return g.Controller, nil
}

// observed puts an object's metadata into the graph, and enqueues the objects that the change may affect.
func (g *collector) observed(n *node) {
	old := g.graph.put(n)
	if n.deleting && (n.foreground() || n.orphans()) {
		g.enqueue(n.uid)
	} else if !n.deleting && g.graph.doubtful(n) {
		g.enqueue(n.uid)
	}
	if old != nil {
		g.enqueueFormerOwners(old, n)
	}
}

// enqueueFormerOwners enqueues owners that old named and n does not, or that n no longer blocks: they may be
// waiting for it.
func (g *collector) enqueueFormerOwners(old, n *node) {
	blocking := make(map[types.UID]bool, len(n.owners))
	for _, ref := range slices.Backward(n.owners) { // the first of several references to one owner counts
		blocking[ref.UID] = blocks(ref)
	}
	for _, ref := range old.owners {
		if still, ok := blocking[ref.UID]; !ok || blocks(ref) && !still {
			g.enqueueIfDeleting(ref.UID)
		}
	}
}

func (g *collector) enqueueIfDeleting(owner types.UID) {
	if n := g.graph.node(owner); n != nil && n.deleting {
		g.enqueue(owner)
	}
}

// removed deletes an object from the graph, and enqueues its dependents and the owners that waited for it.
func (g *collector) removed(uid types.UID) {
	n := g.graph.remove(uid)
	if n == nil {
		return
	}
	for _, d := range g.graph.naming(uid) {
		g.enqueue(d.uid)
	}
	for _, ref := range n.owners {
		g.enqueueIfDeleting(ref.UID)
	}
	g.inquiries.end(uid)
}

// kindsAdded enqueues the objects with an owner of one of these kinds: they were left alone while the kind was
// unknown.
func (g *collector) kindsAdded(added map[schema.GroupVersionKind]bool) {
	for _, uid := range g.graph.ownedBy(added) {
		g.enqueue(uid)
	}
}

func (g *collector) enqueue(uid types.UID) { g.Enqueue(string(uid)) }

func (g *collector) reconcile(ctx context.Context, key string) error {
	n := g.graph.node(types.UID(key))
	switch {
	case n == nil:
		return nil
	case n.deleting && n.orphans():
		return g.orphanDependents(ctx, n)
	case n.deleting && n.foreground():
		return g.deleteDependents(ctx, n)
	case n.deleting || len(n.owners) == 0:
		return nil
	}
	return g.judge(ctx, n)
}

// judge deletes n if it has no owner left, or removes its references to owners that do not exist.
func (g *collector) judge(ctx context.Context, n *node) error {
	v, ok, err := g.verdict(ctx, n)
	if err == nil && ok {
		err = g.act(ctx, n, v)
	}
	return g.unlessUnknown(n, err)
}

// unlessUnknown logs and drops an unknownKind error, and returns all others. kindsAdded enqueues the object
// once discovery has the kind.
func (g *collector) unlessUnknown(n *node, err error) error {
	if unknown := (unknownKind{}); errors.As(err, &unknown) {
		g.logUnknown(n, unknown)
		return nil
	}
	return err
}

// act deletes or patches n according to the verdict on its owners.
func (g *collector) act(ctx context.Context, n *node, v verdict) error {
	switch {
	case len(v.solid) > 0 && len(v.lost)+len(v.waiting) > 0:
		return ignoreGone(g.patchOwners(ctx, n, v.solid))
	case len(v.solid) > 0 && v.unseen:
		// The owner exists but is not in the graph yet. If it were deleted before the graph sees it, no event
		// would enqueue n.
		return controller.ErrRequeue
	case len(v.solid) > 0:
		return nil
	case len(v.waiting) > 0 && len(g.graph.dependents(n)) > 0:
		return g.deleteInForeground(ctx, n)
	}
	return g.delete(ctx, n, n.version, n.policy())
}

// deleteInForeground deletes n, which blocks an owner, with its dependents first. If a dependent waits for n in
// turn, the cycle is broken: n's references no longer block its owners.
func (g *collector) deleteInForeground(ctx context.Context, n *node) error {
	version := n.version
	for _, d := range g.graph.dependents(n) {
		if !d.deleting || !d.foreground() {
			continue
		}
		patched, err := g.patch(ctx, n, map[string]any{"ownerReferences": unblocking(n.owners)})
		if err != nil {
			return ignoreGone(err)
		}
		version = patched.ResourceVersion
		break
	}
	return g.delete(ctx, n, version, metav1.DeletePropagationForeground)
}

func (g *collector) delete(ctx context.Context, n *node, version string, policy metav1.DeletionPropagation) error {
	err := g.clientOf(n).Delete(ctx, n.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &n.uid, ResourceVersion: &version},
	})
	return ignoreGone(err)
}

// deleteDependents drives the foreground deletion of n, and removes n's finalizer when no dependent blocks it.
// If a dependent waits for n in turn, because a user deleted both in the foreground, the cycle is broken: that
// dependent no longer blocks n.
func (g *collector) deleteDependents(ctx context.Context, n *node) error {
	blocked := false
	waiters := g.graph.waiters(n)
	for _, d := range g.graph.dependents(n) {
		if !d.deleting {
			g.enqueue(d.uid)
		}
		if !blocks(*d.reference(n.uid)) {
			continue
		}
		blocked = true
		if waiters[d.uid] {
			if err := ignoreGone(g.patchOwners(ctx, d, unblocking(d.owners, n.uid))); err != nil {
				return err
			}
		}
	}
	if blocked {
		return nil // watch events of the dependents enqueue n again
	}
	return g.removeFinalizer(ctx, n, metav1.FinalizerDeleteDependents)
}

// orphanDependents removes the dependents' references to n, and then n's finalizer.
func (g *collector) orphanDependents(ctx context.Context, n *node) error {
	dependents := g.graph.dependents(n)
	errs := make([]error, len(dependents))
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i, d := range dependents {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = ignoreGone(g.patchOwners(ctx, d, without(d.owners, n.uid)))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("orphan dependents of %s: %w", n, err)
	}
	return g.removeFinalizer(ctx, n, metav1.FinalizerOrphanDependents)
}

// unblocking returns the references with blockOwnerDeletion false for the given owners, or for all owners if
// none is given.
func unblocking(refs []metav1.OwnerReference, owners ...types.UID) []metav1.OwnerReference {
	next := slices.Clone(refs)
	for i := range next {
		if len(owners) == 0 || slices.Contains(owners, next[i].UID) {
			next[i].BlockOwnerDeletion = new(false)
		}
	}
	return next
}

func without(refs []metav1.OwnerReference, uid types.UID) []metav1.OwnerReference {
	remaining := []metav1.OwnerReference{}
	for _, ref := range refs {
		if ref.UID != uid {
			remaining = append(remaining, ref)
		}
	}
	return remaining
}

// logUnknown logs an unknown kind once, however many objects name it.
func (g *collector) logUnknown(n *node, kind unknownKind) {
	key := maphash.Comparable(g.seed, kind) // the hash bounds the memory: a kind may be of any length
	if _, logged := g.unknown.Get(key); !logged {
		g.unknown.Add(key, nil)
		g.Log.Warn("owner has an unknown kind", "object", n, "kind", kind)
	}
}

func (g *collector) recordInvalid(n *node, ref metav1.OwnerReference) {
	g.recorder.Eventf(&corev1.ObjectReference{
		APIVersion: n.gvk.GroupVersion().String(), Kind: n.gvk.Kind,
		Namespace: n.namespace, Name: n.name, UID: n.uid,
	}, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, name: %s, uid: %s] does not exist in namespace %q",
		ref.APIVersion, ref.Kind, ref.Name, ref.UID, n.namespace)
}
