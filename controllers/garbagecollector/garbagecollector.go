// Package garbagecollector deletes objects that have lost their last owner.
//
// Objects name their owners in metadata.ownerReferences. From the metadata of every object
// of every resource that can be listed, watched and deleted, the collector keeps a graph
// (graph.go, fed by monitors.go); when an object changes or is deleted, those whose
// fate may depend on it are reconciled, one by one:
//
//   - An object none of whose owners exists any more is deleted. The graph may lag, so that
//     it never proves the absence of an owner: the API server is asked (owners.go). While
//     discovery does not know the owner's kind, the object is left alone.
//   - An object that has lost some of its owners keeps only the references to the others.
//   - An owner deleted in the foreground (finalizer "foregroundDeletion") waits until its
//     dependents with blockOwnerDeletion are gone, and these are deleted in the foreground too.
//   - An owner deleted with orphaning (finalizer "orphan") goes when no dependent names it
//     any more; their references are removed here.
//
// Deletes and patches carry the uid and the resourceVersion of the object that was judged:
// the server refuses one that is based on an outdated view, the object is judged again, and
// no second read is needed before acting.
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
	// parallel bounds the requests for the dependents of one owner that are under way at once.
	parallel = 20
	// rememberAbsent is how many owners that do not exist are remembered. Uids do not come back.
	rememberAbsent = 1000
)

type collector struct {
	*controller.Controller
	client   func() metadata.Interface
	graph    *graph
	monitors *monitors
	absent   *lru.Cache // of ownerAt
	unknown  *lru.Cache // of hashes of the kinds that have been logged as unknown
	seed     maphash.Seed
	recorder record.EventRecorder
	// slow has objects with many owners to ask for, and inquiries what has been found of these.
	slow      *controller.Controller
	inquiries inquiries
}

// ownerAt is an owner as a dependent names it, with the namespace it would have to be in.
type ownerAt struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

// New returns the controller. Its keys are uids.
func New(env *controller.Env) (*controller.Controller, error) {
	g := &collector{
		client: env.Metadata, graph: newGraph(), absent: lru.New(rememberAbsent),
		unknown: lru.New(rememberAbsent), seed: maphash.MakeSeed(),
		recorder: env.Recorder("garbage-collector-controller"),
	}
	g.inquiries.of = map[types.UID]*inquiry{}
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

// observed takes in an object's metadata, and wakes whose fate may depend on the change.
func (g *collector) observed(n *node) {
	old := g.graph.put(n)
	if n.deleting && (n.foreground() || n.orphans()) {
		g.enqueue(n.uid)
	} else if !n.deleting && g.graph.doubtful(n) {
		g.enqueue(n.uid)
	}
	if old != nil {
		g.wakeOwnersLost(old, n)
	}
}

// wakeOwnersLost wakes the owners that old named, and perhaps waits for, and n does not.
func (g *collector) wakeOwnersLost(old, n *node) {
	blocking := make(map[types.UID]bool, len(n.owners))
	for _, ref := range slices.Backward(n.owners) { // of several references to one owner the first counts
		blocking[ref.UID] = blocks(ref)
	}
	for _, ref := range old.owners {
		if still, named := blocking[ref.UID]; !named || blocks(ref) && !still {
			g.wakeIfDeleting(ref.UID)
		}
	}
}

func (g *collector) wakeIfDeleting(owner types.UID) {
	if n := g.graph.node(owner); n != nil && n.deleting {
		g.enqueue(owner)
	}
}

// gone takes an object out, and wakes its dependents and the owners that waited for it.
func (g *collector) gone(uid types.UID) {
	n := g.graph.remove(uid)
	if n == nil {
		return
	}
	for _, d := range g.graph.naming(uid) {
		g.enqueue(d.uid)
	}
	for _, ref := range n.owners {
		g.wakeIfDeleting(ref.UID)
	}
	g.inquiries.end(uid)
}

// kindsAdded wakes those that have been left alone since a kind of theirs was not known.
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

// judge deletes n if it has no owner left, or takes the references to lost owners from it.
func (g *collector) judge(ctx context.Context, n *node) error {
	v, ok, err := g.verdict(ctx, n)
	if err == nil && ok {
		err = g.act(ctx, n, v)
	}
	return g.unlessUnknown(n, err)
}

// unlessUnknown returns an error unless it is that a kind is not known: kindsAdded brings the object back then.
func (g *collector) unlessUnknown(n *node, err error) error {
	if unknown := (unknownKind{}); errors.As(err, &unknown) {
		g.tellUnknown(n, unknown)
		return nil
	}
	return err
}

// act does what the verdict on n's owners demands.
func (g *collector) act(ctx context.Context, n *node, v verdict) error {
	switch {
	case len(v.solid) > 0 && len(v.lost)+len(v.waiting) > 0:
		return ignoreGone(g.patchOwners(ctx, n, v.solid))
	case len(v.solid) > 0 && v.unseen:
		// The owner is there but not in the graph yet: were it deleted before it gets
		// there, nothing would wake us.
		return controller.ErrRequeue
	case len(v.solid) > 0:
		return nil
	case len(v.waiting) > 0 && len(g.graph.dependents(n)) > 0:
		return g.deleteInForeground(ctx, n)
	}
	return g.delete(ctx, n, n.version, n.policy())
}

// deleteInForeground deletes n, for which an owner waits, dependents first. Where one of
// them waits for n in turn, the circle is opened by letting n's owners wait no longer.
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
	err := g.at(n).Delete(ctx, n.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &n.uid, ResourceVersion: &version},
	})
	return ignoreGone(err)
}

// deleteDependents is the foreground deletion of n: it lets n go when nothing blocks it. Where a dependent
// waits for n in turn, both having been deleted so by a user, the circle is opened by letting n wait for it
// no longer.
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
		return nil // watch events report their deletion, and those that no longer block
	}
	return g.removeFinalizer(ctx, n, metav1.FinalizerDeleteDependents)
}

// orphanDependents frees n's dependents from it, and then lets n go.
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

// unblocking are the references, of which those to the given owners, or all where none is given, block no longer.
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
	kept := []metav1.OwnerReference{}
	for _, ref := range refs {
		if ref.UID != uid {
			kept = append(kept, ref)
		}
	}
	return kept
}

// tellUnknown logs a kind once, however many objects name it.
func (g *collector) tellUnknown(n *node, kind unknownKind) {
	key := maphash.Comparable(g.seed, kind) // a kind may be as long as its author likes
	if _, told := g.unknown.Get(key); !told {
		g.unknown.Add(key, nil)
		g.Log.Warn("the kind of an owner is not known", "object", n, "kind", kind)
	}
}

func (g *collector) tellInvalid(n *node, ref metav1.OwnerReference) {
	g.recorder.Eventf(&corev1.ObjectReference{
		APIVersion: n.gvk.GroupVersion().String(), Kind: n.gvk.Kind,
		Namespace: n.namespace, Name: n.name, UID: n.uid,
	}, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, name: %s, uid: %s] does not exist in namespace %q",
		ref.APIVersion, ref.Kind, ref.Name, ref.UID, n.namespace)
}
