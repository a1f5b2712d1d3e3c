package storage

import "sync"

// handover passes the objects of this store's own commits to the goroutine that applies the watch, so that a
// document which was scanned to be written is not scanned and copied again when etcd sends it back.
//
// It is only a shortcut. The watch decides which changes happened, and their order, and find checks each object
// against the bytes that came from etcd. Without an object here, the document is scanned.
//
// Committing goroutines call give. One goroutine at a time, the one that applies the watch, calls take. mu guards
// both slices.
type handover struct {
	mu      sync.Mutex
	objects []handedObject // of the commits that the watch has not delivered yet: usually a few
	taken   []handedObject // the result of the last take; its array is reused
}

// handedObject is an object, and the schema that its document was scanned with.
type handedObject struct {
	object *Object
	schema *schema
}

// give leaves the object of a commit, unless the frontier shows that its change has been applied already. A batch is
// taken before the frontier advances, so an object may still come too late for its own batch. The next take removes it.
func (h *handover) give(f *frontier, o *Object, sc *schema) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.now() < o.Revision {
		h.objects = append(h.objects, handedObject{o, sc})
	}
}

// take removes and returns the objects of revisions up to upTo. Objects that are given later for these revisions
// are returned, and ignored, by the next call. The slice is valid until then.
func (h *handover) take(upTo int64) []handedObject {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.taken)
	h.taken = h.taken[:0]
	rest := h.objects[:0]
	for _, handed := range h.objects {
		if handed.object.Revision <= upTo {
			h.taken = append(h.taken, handed)
		} else {
			rest = append(rest, handed)
		}
	}
	clear(h.objects[len(rest):])
	h.objects = rest
	return h.taken
}

// find returns the change for a put of a path, if its object was handed over. The schema goes along, so that the
// collection can rescan the object if its schema has changed since.
func find(own []handedObject, c *Change) (change, bool) {
	for _, handed := range own {
		o := handed.object
		// etcd has one value for a key at a revision, so the comparison of the values could be left out. It is
		// cheap, and does not depend on that.
		if o.Revision == c.Revision && o.Key.is(c.Path) && o.Same(c.Value) {
			return change{key: o.Key, revision: c.Revision, object: o, schema: handed.schema}, true
		}
	}
	return change{}, false
}

// is reports whether a path is the key's. It does not build the key's path.
func (k *Key) is(path string) bool {
	n := len(k.Collection)
	if len(path) <= n || path[:n] != k.Collection || path[n] != '/' {
		return false
	}
	path = path[n+1:]
	if n = len(k.Namespace); n > 0 {
		if len(path) <= n || path[:n] != k.Namespace || path[n] != '/' {
			return false
		}
		path = path[n+1:]
	}
	return path == k.Name
}
