package storage

import (
	"strings"

	"github.com/google/btree"
)

// tally is the number of readable objects in a namespace.
type tally struct {
	namespace string
	objects   int
}

// tallies hold a tally for each namespace that has objects. A list reports the number of objects after its first page,
// and must not count them for that. So a snapshot has tallies, too, and they are a tree, which is cheap to clone.
type tallies struct{ *btree.BTreeG[tally] }

func newTallies() tallies {
	return tallies{btree.NewG(treeDegree, func(a, b tally) bool { return a.namespace < b.namespace })}
}

func (t tallies) count(namespace string) int {
	current, _ := t.Get(tally{namespace: namespace})
	return current.objects
}

func (t tallies) add(namespace string, n int) {
	if namespace == "" {
		return // the tree of objects knows how many it has
	}
	current, ok := t.Get(tally{namespace: namespace})
	if !ok {
		current.namespace = strings.Clone(namespace)
	}
	if current.objects += n; current.objects == 0 {
		t.Delete(current)
		return
	}
	t.ReplaceOrInsert(current)
}

// put replaces an object or adds it. The caller holds the lock for writing.
func (c *Collection) put(o *Object) (previous *Object) {
	previous, replaced := c.tree.ReplaceOrInsert(o)
	if !replaced {
		c.tallies.add(o.Key.Namespace, 1)
	}
	return previous
}

// remove removes an object, if there is one. The caller holds the lock for writing.
func (c *Collection) remove(key Key) (previous *Object) {
	previous, removed := c.tree.Delete(&Object{Key: key})
	if removed {
		c.tallies.add(key.Namespace, -1)
	}
	return previous
}
