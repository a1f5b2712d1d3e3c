package storage

import (
	"strings"

	"github.com/google/btree"
)

// tally is how many readable objects a namespace has.
type tally struct {
	namespace string
	objects   int
}

// tallies are those of all namespaces that have objects. They are a tree because a snapshot has to keep them: a list
// tells how many objects follow its first page, and must not count them for that.
type tallies struct{ *btree.BTreeG[tally] }

func newTallies() tallies {
	return tallies{btree.NewG(treeDegree, func(a, b tally) bool { return a.namespace < b.namespace })}
}

func (t tallies) of(namespace string) int {
	known, _ := t.Get(tally{namespace: namespace})
	return known.objects
}

func (t tallies) add(namespace string, n int) {
	if namespace == "" {
		return // the tree of objects knows how many it has
	}
	known, ok := t.Get(tally{namespace: namespace})
	if !ok {
		known.namespace = strings.Clone(namespace)
	}
	if known.objects += n; known.objects == 0 {
		t.Delete(known)
		return
	}
	t.ReplaceOrInsert(known)
}

// put puts an object in the place of its predecessor. The lock is held for writing.
func (c *Collection) put(o *Object) (previous *Object) {
	previous, replaced := c.tree.ReplaceOrInsert(o)
	if !replaced {
		c.tallies.add(o.Key.Namespace, 1)
	}
	return previous
}

// remove removes an object, if there is one. The lock is held for writing.
func (c *Collection) remove(key Key) (previous *Object) {
	previous, removed := c.tree.Delete(&Object{Key: key})
	if removed {
		c.tallies.add(key.Namespace, -1)
	}
	return previous
}
