package storage

import (
	"bytes"
	"slices"
)

// extent is a part of Object.JSON. An Object has two extents: the bytes that were spliced into the stored document, and
// the value of metadata.
type extent struct{ start, end int }

// Same reports whether doc, a document without a resourceVersion, equals the stored document.
func (o *Object) Same(doc []byte) bool {
	return len(doc) == len(o.JSON)-(o.spliced.end-o.spliced.start) &&
		bytes.Equal(doc[:o.spliced.start], o.JSON[:o.spliced.start]) &&
		bytes.Equal(doc[o.spliced.start:], o.JSON[o.spliced.end:])
}

// Stored returns a copy of the document as it is stored, without a resourceVersion.
func (o *Object) Stored() []byte {
	return slices.Concat(o.JSON[:o.spliced.start], o.JSON[o.spliced.end:])
}

// Metadata returns the value of the document's metadata, which is a part of JSON.
func (o *Object) Metadata() []byte { return o.JSON[o.metadata.start:o.metadata.end] }

// NewObject scans a document that is not stored, such as the result of a dry run. The object has no Fields and, at
// revision 0, no resourceVersion.
func NewObject(key Key, revision int64, doc []byte) (*Object, error) {
	return NewObjectWith(CollectionOptions{}, key, revision, doc)
}

// NewObjectWith does the same as NewObject, but fills the Fields that the options name.
func NewObjectWith(options CollectionOptions, key Key, revision int64, doc []byte) (*Object, error) {
	o, err := newSchema(options).object(key, revision, doc)
	if err != nil || revision != 0 {
		return o, err
	}
	o.JSON = slices.Delete(slices.Clone(o.JSON), o.spliced.start, o.spliced.end)
	o.metadata.end -= o.spliced.end - o.spliced.start
	o.spliced.end = o.spliced.start
	return o, nil
}

// at returns the object with another revision spliced in, as a Deleted event carries it.
func (sc *schema) at(o *Object, revision int64) *Object {
	moved, err := sc.object(o.Key, revision, o.JSON)
	if err != nil {
		panic("storage: an object that was scanned before: " + err.Error())
	}
	// Only the number was replaced; the rest of the first splice is still around it.
	moved.spliced = extent{o.spliced.start, o.spliced.end + len(moved.JSON) - len(o.JSON)}
	return moved
}
