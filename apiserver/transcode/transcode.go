// Package transcode converts a JSON document into Kubernetes' protobuf in one pass over its bytes,
// without decoding it into a Go value in between.
//
// Objects are stored as JSON, and most of client-go's clients request protobuf. Decoding a pod and
// encoding it again costs ten times as much as one pass over its bytes, for every watcher and every
// event.
//
// The tags of the Go type give the place of each field: `json:"name" protobuf:"bytes,1,…"`. A Message
// is the compiled form of one type, made once (message.go); Append walks a document with it (scan.go
// reads JSON, value.go writes fields). Zero values that the Go types' own encoding would send may be
// absent here; readers cannot distinguish the two.
//
// The documents are expected to be the server's own encoding. For others, Append returns an error
// rather than a wrong result; callers then go through the Go type.
package transcode

import (
	"encoding/binary"
	"errors"
	"reflect"
)

// errForm is returned for documents that do not have the form of their type.
var errForm = errors.New("transcode: the document does not have the form of its type")

// Append adds the protobuf of doc, a JSON object of m's type, to buf.
func (m *Message) Append(buf, doc []byte) ([]byte, error) {
	s := scanner{doc: doc}
	return m.members(buf, &s)
}

// members reads an object and writes its fields.
func (m *Message) members(buf []byte, s *scanner) ([]byte, error) {
	more, err := s.first('{', '}')
	for ; more && err == nil; more, err = s.another('}') {
		key, err := s.key()
		if err != nil {
			return buf, err
		}
		f, known := m.fields[string(key)]
		if !known || s.peek() == 'n' { // null is as good as absent
			if _, err := s.skip(); err != nil {
				return buf, err
			}
			continue
		}
		if buf, err = f.append(buf, s); err != nil {
			return buf, err
		}
	}
	return buf, err
}

// append writes a field, inside the messages that its struct is embedded by.
func (f *field) append(buf []byte, s *scanner) ([]byte, error) {
	if f.embedded == nil {
		return f.value.append(buf, s, f.tag)
	}
	buf, at := Open(buf, f.embedded.tag)
	buf, err := (&field{tag: f.tag, value: f.value, embedded: f.embedded.outer}).append(buf, s)
	return Close(buf, at), err
}

// A message or string inside another has its length in front, which is not known before it
// is written: Open leaves one byte for it, and Close makes room when it needs more.

// Open begins a length-delimited field. The result at is for Close.
func Open(buf []byte, tag Tag) (_ []byte, at int) {
	buf = append(tag.append(buf), 0)
	return buf, len(buf)
}

// Close ends the field that began at at.
func Close(buf []byte, at int) []byte {
	size := len(buf) - at
	if size < 0x80 {
		buf[at-1] = byte(size)
		return buf
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(size))
	buf = append(buf, length[:n-1]...) // only to make room
	copy(buf[at+n-1:], buf[at:at+size])
	copy(buf[at-1:], length[:n])
	return buf
}

// AppendSized adds a length-delimited field: a string, bytes or a message.
func AppendSized[T ~string | ~[]byte](buf []byte, tag Tag, content T) []byte {
	return append(binary.AppendUvarint(tag.append(buf), uint64(len(content))), content...)
}

// Tag is a field's number and wire type, as protobuf writes them in front of the value.
type Tag uint32

// The wire types in use. https://protobuf.dev/programming-guides/encoding/#structure
const (
	varint = 0
	sized  = 2
)

// SizedTag is the tag of a length-delimited field.
func SizedTag(number int) Tag { return Tag(number<<3 | sized) }

func (t Tag) append(buf []byte) []byte { return binary.AppendUvarint(buf, uint64(t)) }

// Of returns the Message of a Go struct type, or false if it has fields that this package cannot write.
// It is safe for concurrent use.
func Of(t reflect.Type) (*Message, bool) {
	if m, ok := known.Load(t); ok {
		return m.(*Message), m.(*Message) != nil
	}
	m, err := (&compiler{messages: map[reflect.Type]*Message{}}).message(t)
	if err != nil {
		m = nil
	}
	known.Store(t, m)
	return m, m != nil
}
