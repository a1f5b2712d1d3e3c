package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// node is one object in the graph. It is immutable, so that it can be read without the graph's lock: put
// replaces it by a new node.
type node struct {
	gvr             schema.GroupVersionResource
	gvk             schema.GroupVersionKind
	namespace, name string
	uid             types.UID
	version         string
	owners          []metav1.OwnerReference
	finalizers      []string
	deleting        bool
}

func (n *node) String() string { return n.gvr.Resource + " " + n.namespace + "/" + n.name }

func (n *node) foreground() bool { return has(n.finalizers, metav1.FinalizerDeleteDependents) }
func (n *node) orphans() bool    { return has(n.finalizers, metav1.FinalizerOrphanDependents) }

// policy returns the propagation policy for a delete of n that keeps the finalizers that n has.
func (n *node) policy() metav1.DeletionPropagation {
	switch {
	case n.orphans():
		return metav1.DeletePropagationOrphan
	case n.foreground():
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}

// reference returns n's reference to an owner, or nil.
func (n *node) reference(owner types.UID) *metav1.OwnerReference {
	for i := range n.owners {
		if n.owners[i].UID == owner {
			return &n.owners[i]
		}
	}
	return nil
}

// isNamedBy reports whether ref, found in dependent, names n by group, kind, name, uid and namespace. A uid
// alone does not make an owner: any client writes references, and an owner in another namespace is invalid. The
// version of the group does not matter.
func (n *node) isNamedBy(ref metav1.OwnerReference, dependent *node) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == n.gvk.Group && ref.Kind == n.gvk.Kind && ref.Name == n.name &&
		ref.UID == n.uid && (n.namespace == "" || n.namespace == dependent.namespace)
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

func has(finalizers []string, f string) bool { return slices.Contains(finalizers, f) }

// graph holds all objects and their references to owners. An owner need not be in it: references to it are
// indexed all the same, and resolved when it appears. It is safe for concurrent use.
type graph struct {
	mu    sync.RWMutex
	nodes map[types.UID]*node
	// named maps the uid of an owner to the uids of the objects with a reference to it. It has an entry for
	// every reference of nodes, and no empty sets.
	named map[types.UID]map[types.UID]struct{}
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, named: map[types.UID]map[types.UID]struct{}{}}
}

func (g *graph) node(uid types.UID) *node {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.nodes[uid]
}

// put adds a node. It returns the node that it replaces, or nil.
func (g *graph) put(n *node) (old *node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old = g.nodes[n.uid]
	g.unlink(old)
	g.nodes[n.uid] = n
	for _, ref := range n.owners {
		if g.named[ref.UID] == nil {
			g.named[ref.UID] = map[types.UID]struct{}{}
		}
		g.named[ref.UID][n.uid] = struct{}{}
	}
	return old
}

// remove deletes a node and returns it, or nil.
func (g *graph) remove(uid types.UID) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	g.unlink(n)
	delete(g.nodes, uid)
	return n
}

func (g *graph) unlink(n *node) {
	if n == nil {
		return
	}
	for _, ref := range n.owners {
		delete(g.named[ref.UID], n.uid)
		if len(g.named[ref.UID]) == 0 {
			delete(g.named, ref.UID)
		}
	}
}

// naming returns all nodes with a reference to uid, valid or not.
func (g *graph) naming(uid types.UID) []*node {
	g.mu.RLock()
	defer g.mu.RUnlock()
	nodes := make([]*node, 0, len(g.named[uid]))
	for d := range g.named[uid] {
		nodes = append(nodes, g.nodes[d])
	}
	return nodes
}

// dependents returns the nodes with a valid reference to n.
func (g *graph) dependents(n *node) []*node {
	return slices.DeleteFunc(g.naming(n.uid), func(d *node) bool {
		return !n.isNamedBy(*d.reference(n.uid), d)
	})
}

// waiters returns the uids of the owners that wait, deleted in the foreground, for n to be gone, and of the
// owners that wait for these in turn.
func (g *graph) waiters(n *node) map[types.UID]bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	found := map[types.UID]bool{}
	for next := []*node{n}; len(next) > 0; {
		n, next = next[0], next[1:]
		for _, ref := range n.owners {
			owner := g.nodes[ref.UID]
			if owner == nil || found[owner.uid] || !blocks(ref) || !owner.deleting || !owner.foreground() ||
				!owner.isNamedBy(ref, n) {
				continue
			}
			found[owner.uid] = true
			next = append(next, owner)
		}
	}
	return found
}

// doubtful reports whether one of n's owners is not in the graph, is not a valid owner, or waits for n's
// deletion.
func (g *graph) doubtful(n *node) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.ContainsFunc(n.owners, func(ref metav1.OwnerReference) bool {
		owner := g.nodes[ref.UID]
		return owner == nil || !owner.isNamedBy(ref, n) || owner.deleting && owner.foreground()
	})
}

// ownedBy returns all objects that name an owner of one of the kinds.
func (g *graph) ownedBy(kinds map[schema.GroupVersionKind]bool) (found []types.UID) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for uid, n := range g.nodes {
		if slices.ContainsFunc(n.owners, func(ref metav1.OwnerReference) bool {
			return kinds[schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)]
		}) {
			found = append(found, uid)
		}
	}
	return found
}
