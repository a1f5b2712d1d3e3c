package storage

import "sync"

// handover passes the objects of this store's own commits to the goroutine that applies the watch, so
// that a document that was scanned to be written is not scanned and copied once more when it comes
// back. Nothing depends on it: without an object here, the document is scanned.
type handover struct {
	mu      sync.Mutex
	objects []handedObject // of the commits that the watch has not delivered yet: a handful
	taken   []handedObject // reused
}

// handedObject is an object and the schema that it was made with.
type handedObject struct {
	object *Object
	schema *schema
}

// give leaves the object of a commit, unless the watch was quicker.
func (h *handover) give(f *frontier, o *Object, sc *schema) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.now() < o.Revision {
		h.objects = append(h.objects, handedObject{o, sc})
	}
}

// take returns the objects given up to a revision. Objects that are given later for these revisions are
// returned by the next call. The slice is valid until then.
func (h *handover) take(upTo int64) []handedObject {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.taken)
	h.taken = h.taken[:0]
	rest := h.objects[:0]
	for _, given := range h.objects {
		if given.object.Revision <= upTo {
			h.taken = append(h.taken, given)
		} else {
			rest = append(rest, given)
		}
	}
	clear(h.objects[len(rest):])
	h.objects = rest
	return h.taken
}

// find returns the change for a put of a path, if its object was handed over.
func find(own []handedObject, c *Change) (change, bool) {
	for _, given := range own {
		o := given.object
		// etcd has one value for a key and a revision. Looking costs less than trusting.
		if o.Revision == c.Revision && o.Key.is(c.Path) && o.Same(c.Value) {
			return change{key: o.Key, revision: c.Revision, object: o, schema: given.schema}, true
		}
	}
	return change{}, false
}

// is reports whether a path is that of the key, without building it.
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
