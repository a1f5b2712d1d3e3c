package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
)

// Collection has the objects of one resource: a copy-on-write snapshot tree, ordered by namespace and name, and the log
// of its events.
//
// One goroutine at a time, the one that applies etcd's watch, changes the objects and the log, with mu held for
// writing. Opening a collection with other options and backfilling its log change them too, under the same lock.
// Objects, log entries and snapshots are immutable, so a reader needs the lock only to get them.
type Collection struct {
	store  *Store
	name   string                 // immutable
	schema atomic.Pointer[schema] // replaced with mu held for writing, loaded without it

	// mu guards the fields below, up to gap.
	mu sync.RWMutex
	// tree holds the objects as of revision, as far as memory has them.
	tree     *btree.BTreeG[*Object]
	tallies  tallies
	revision int64 // of the last change of this collection
	// shared is a clone of tree that readers may keep without the lock; nil after a change. The first reader after a
	// change makes it, with mu held for writing, because Clone changes tree as well: from then on writers copy the
	// nodes that they touch.
	shared        *btree.BTreeG[*Object]
	sharedTallies tallies                           // the clone of tallies that belongs to shared
	index         map[string]*btree.BTreeG[*Object] // by the value of the indexed field
	nodes         *btree.FreeListG[*Object]         // of the index's trees
	log           eventLog
	alarms        alarms
	keptSnapshots keptSnapshots
	// damaged holds the documents that cannot be read, nil while there are none. sharedDamaged is its clone, which
	// belongs to shared.
	damaged, sharedDamaged *btree.BTreeG[*damage]
	gap                    int64 // the revision of the last change without an event, see breakWatches

	received atomic.Int64 // changes that the watch over etcd delivered
}

const treeDegree = 32

var plainSchema = newSchema(CollectionOptions{})

func newCollection(s *Store, name string) *Collection {
	c := &Collection{
		store: s, name: name,
		tree:     btree.NewG(treeDegree, before),
		tallies:  newTallies(),
		revision: s.base,
		index:    map[string]*btree.BTreeG[*Object]{},
		nodes:    btree.NewFreeListG[*Object](btree.DefaultFreeListSize),
		log:      newEventLog(&s.options, s.base),
	}
	c.schema.Store(plainSchema)
	return c
}

// before reports whether a is before b in the tree. The order is that of the paths in etcd: "a-b/x" is before "a/x",
// because '-' is before '/'. Pages from memory and from etcd must have the same order.
func before(a, b *Object) bool { return comparePaths(&a.Key, &b.Key) < 0 }

func comparePaths(a, b *Key) int {
	if a.Namespace == b.Namespace {
		return strings.Compare(a.Name, b.Name)
	}
	n := min(len(a.Namespace), len(b.Namespace))
	if order := strings.Compare(a.Namespace[:n], b.Namespace[:n]); order != 0 {
		return order
	}
	// One namespace begins with the other; the shorter is followed by a slash.
	if len(a.Namespace) > n {
		return compareToSlash(a.Namespace[n])
	}
	return -compareToSlash(b.Namespace[n])
}

func compareToSlash(c byte) int {
	if c < '/' {
		return -1
	}
	return 1
}

// probes are keys to look up in the tree.
var probes = sync.Pool{New: func() any { return new(Object) }}

// get returns the present object in memory, or nil.
func (c *Collection) get(namespace, name string) *Object {
	probe := probes.Get().(*Object)
	probe.Key.Namespace, probe.Key.Name = namespace, name
	c.mu.RLock()
	o, _ := c.tree.Get(probe)
	c.mu.RUnlock()
	probes.Put(probe)
	return o
}

// Changed returns the revision of the last change of the collection in memory, and reports whether the collection has
// any objects. It takes no snapshot.
func (c *Collection) Changed() (revision int64, any bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision, c.countLocked() > 0
}

// Count returns the present number of objects of the collection, including objects that cannot be read.
func (c *Collection) Count() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.countLocked()
}

// CountIn returns the present number of readable objects of a namespace; "" is all namespaces.
func (c *Collection) CountIn(namespace string) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return snapshot{tree: c.tree, tallies: c.tallies}.count(namespace)
}

func (c *Collection) countLocked() int {
	n := c.tree.Len()
	if c.damaged != nil {
		n += c.damaged.Len()
	}
	return n
}

// open sets the fields and the index of the collection, and rescans the documents that it already has.
func (c *Collection) open(o CollectionOptions) {
	if old := c.schema.Load(); old.is(o) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sc := newSchema(o)
	if c.schema.Load().is(o) {
		return
	}
	c.schema.Store(sc)
	rescanned := map[*Object]*Object{}
	rescan := func(old *Object) *Object {
		if old == nil {
			return nil
		}
		if rescanned[old] == nil {
			rescanned[old] = sc.at(old, old.Revision)
		}
		return rescanned[old]
	}
	tree := btree.NewG(treeDegree, before)
	c.index = map[string]*btree.BTreeG[*Object]{}
	c.tree.Ascend(func(old *Object) bool {
		fresh := rescan(old)
		tree.ReplaceOrInsert(fresh)
		c.indexPut(fresh)
		return true
	})
	c.tree, c.shared = tree, nil
	c.keptSnapshots.clear()
	if c.damaged != nil {
		c.damaged.Ascend(func(d *damage) bool {
			d.last = rescan(d.last)
			return true
		})
	}
	for n := c.log.first; n < c.log.next; n++ {
		old := c.log.at(n)
		c.log.ring[n&uint64(len(c.log.ring)-1)] = &entry{
			revision: old.revision, object: rescan(old.object), previous: rescan(old.previous),
		}
	}
}

func (sc *schema) is(o CollectionOptions) bool {
	index := ""
	if sc.index >= 0 {
		index = sc.fields[sc.index]
	}
	return index == o.Index && slices.Equal(sc.fields, o.Fields)
}

// load adds an object of the first snapshot, before there are readers.
func (c *Collection) load(ch change) {
	if ch.damage != nil {
		c.setDamaged(ch)
		return
	}
	c.put(ch.object)
	c.indexPut(ch.object)
}

// apply applies the changes of one revision.
func (c *Collection) apply(changes []change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.keptSnapshots.list) > 0 { // only changes make kept snapshots cost anything
		c.keptSnapshots.prune(time.Now())
	}
	sc := c.schema.Load()
	for _, ch := range changes {
		if ch.object != nil && ch.schema != sc {
			ch.object = sc.at(ch.object, ch.revision)
		}
		e := &entry{revision: ch.revision, object: ch.object}
		switch {
		case ch.damage != nil:
			c.setDamaged(ch)
			continue
		case ch.object != nil:
			e.previous = c.put(ch.object)
		default:
			e.previous = c.remove(ch.key)
		}
		if e.previous == nil {
			var lost bool
			if e.previous, lost = c.repair(ch); lost {
				c.breakWatches(ch.revision)
			}
		}
		if e.object == nil && e.previous == nil {
			continue // of an object that memory never had, or that it knows to be gone
		}
		c.indexDelete(e.previous)
		c.indexPut(e.object)
		c.alarms.notify(sc, e, c.log.append(e))
		c.revision, c.shared = ch.revision, nil
	}
}

func (c *Collection) indexPut(o *Object) {
	value, ok := c.schema.Load().indexValue(o)
	if !ok {
		return
	}
	t := c.index[value]
	if t == nil {
		t = btree.NewWithFreeListG(treeDegree, before, c.nodes)
		c.index[strings.Clone(value)] = t
	}
	t.ReplaceOrInsert(o)
}

func (c *Collection) indexDelete(o *Object) {
	value, ok := c.schema.Load().indexValue(o)
	if !ok {
		return
	}
	if t := c.index[value]; t != nil {
		t.Delete(o)
		if t.Len() == 0 {
			delete(c.index, value)
		}
	}
}

func (sc *schema) indexValue(o *Object) (string, bool) {
	if o == nil || sc.index < 0 || o.Fields[sc.index] == "" {
		return "", false
	}
	return o.Fields[sc.index], true
}

// snapshot is an immutable state of the collection: the state at every revision from first to last.
type snapshot struct {
	tree        *btree.BTreeG[*Object]
	tallies     tallies
	damaged     *btree.BTreeG[*damage]
	first, last int64
}

func (c *Collection) snapshot() snapshot {
	c.mu.RLock()
	if c.shared != nil {
		defer c.mu.RUnlock()
		return c.snapshotLocked()
	}
	c.mu.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cloneLocked()
}

// cloneLocked returns the shared clone, and creates it if there is none. The caller holds the lock for writing.
func (c *Collection) cloneLocked() snapshot {
	if c.shared == nil {
		c.shared, c.sharedTallies, c.sharedDamaged = c.tree.Clone(), tallies{c.tallies.Clone()}, nil
		if c.damaged != nil {
			c.sharedDamaged = c.damaged.Clone()
		}
	}
	return c.snapshotLocked()
}

func (c *Collection) snapshotLocked() snapshot {
	return snapshot{tree: c.shared, tallies: c.sharedTallies, damaged: c.sharedDamaged, first: c.revision,
		last: c.reachedLocked()}
}

// count returns the number of readable objects of a namespace; "" is all namespaces.
func (s snapshot) count(namespace string) int {
	if namespace == "" {
		return s.tree.Len()
	}
	return s.tallies.count(namespace)
}

// reachedLocked returns the newest revision that this collection is complete for. The frontier moves after the changes
// are applied. A change of this collection that is newer than the frontier was applied under the lock as a whole, so
// revision counts, too. The caller holds the lock, for reading at least.
func (c *Collection) reachedLocked() int64 { return max(c.revision, c.store.Frontier()) }

func (s snapshot) all() []*Object {
	objects := make([]*Object, 0, s.tree.Len())
	s.tree.Ascend(func(o *Object) bool {
		objects = append(objects, o)
		return true
	})
	return objects
}

// At specifies how fresh a read must be (the API's resourceVersion and resourceVersionMatch).
// The zero value is a consistent read.
type At struct {
	// Any serves from memory at once (resourceVersion=0). Revision is then ignored.
	Any bool
	// Revision, if not 0, is the oldest revision that the read may return; with Exact, the only one.
	Revision int64
	Exact    bool
}

// reach waits until memory is as fresh as a read demands.
func (c *Collection) reach(ctx context.Context, at At) error {
	switch {
	case at.Any:
		return nil
	case at.Revision > 0:
		return c.store.await(ctx, at.Revision, futureTimeout, ErrFuture)
	}
	_, err := c.store.Revision(ctx)
	return err
}

// Get reads one object. It returns ErrNotFound if the object does not exist.
func (c *Collection) Get(ctx context.Context, namespace, name string, at At) (*Object, error) {
	key := Key{Collection: c.name, Namespace: namespace, Name: name}
	if err := c.reach(ctx, at); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	if at.Exact && at.Revision > 0 && !at.Any {
		return c.getExactly(ctx, key, at.Revision)
	}
	if o := c.get(namespace, name); o != nil {
		return o, nil
	}
	if err := c.damagedOf(namespace, name); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s: %w", key, ErrNotFound)
}

func (c *Collection) getExactly(ctx context.Context, key Key, revision int64) (*Object, error) {
	if err := c.store.past(ctx, &Scope{}, revision); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	if s, ok := c.snapshotAt(revision); ok {
		if o, found := s.tree.Get(&Object{Key: key}); found {
			return o, nil
		}
		if err := firstDamaged(s.damaged, Scope{Namespace: key.Namespace, Name: key.Name}, "", ""); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s at revision %d: %w", key, revision, ErrNotFound)
	}
	path := key.String()
	result, err := c.store.backend.Range(ctx, RangeRequest{Prefix: path, Revision: revision, Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("get %s at revision %d: %w", key, revision, err)
	}
	if len(result.KVs) == 0 || result.KVs[0].Path != path {
		return nil, fmt.Errorf("%s at revision %d: %w", key, revision, ErrNotFound)
	}
	kv := result.KVs[0]
	if err := unreadable(kv); err != nil {
		return nil, &Damaged{Key: key, Revision: kv.Revision, Err: err}
	}
	return c.schema.Load().object(key, kv.Revision, kv.Value)
}
