package storage

import "sync/atomic"

// Object is one revision of one document. It is immutable and shared: callers must not
// modify JSON or any slice of it.
type Object struct {
	Key Key
	// Revision is etcd's mod revision of this document; in the API, the resourceVersion.
	Revision int64
	// JSON is the document as clients read it, metadata.resourceVersion included.
	JSON []byte
	// UID and Labels are read from metadata by the one scan, for owners and selectors. The strings point into JSON.
	UID    string
	Labels Labels
	// Owners are the UIDs in metadata.ownerReferences.
	Owners []string
	// Fields are the values at the collection's field paths, in the order of
	// CollectionOptions.Fields; "" where the document has none.
	Fields []string

	spliced, metadata extent
	mark              uint64 // atomic; the only field that changes
}

// Mark returns the number that SetMark has left at the object last, or 0.
func (o *Object) Mark() uint64 { return atomic.LoadUint64(&o.mark) }

// SetMark leaves a number at the object for later readers. It identifies a schema that the document conforms to. It is
// safe for concurrent use.
func (o *Object) SetMark(mark uint64) { atomic.StoreUint64(&o.mark, mark) }

// Label is one key and value of metadata.labels.
type Label struct{ Key, Value string }

// Labels implements k8s.io/apimachinery/pkg/labels.Labels without a map.
type Labels []Label

// Has reports whether the label is set.
func (l Labels) Has(key string) bool { _, ok := l.Lookup(key); return ok }

// Get returns the label's value, or "".
func (l Labels) Get(key string) string { v, _ := l.Lookup(key); return v }

// Lookup returns the label's value and whether it is set.
func (l Labels) Lookup(key string) (string, bool) {
	for i := range l {
		if l[i].Key == key {
			return l[i].Value, true
		}
	}
	return "", false
}
