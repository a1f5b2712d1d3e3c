// Package transcode converts a JSON document to Kubernetes' protobuf in one pass over its bytes, without decoding
// it into a Go value.
//
// Objects are stored as JSON, but most clients based on client-go request protobuf. Decoding a pod and encoding it
// again costs ten times as much as one pass, for every watcher and every event.
//
// The tags of the Go type determine the position of each field: `json:"name" protobuf:"bytes,1,…"`. A Message is
// the compiled form of one type (message.go). Append traverses a document with it: scan.go reads JSON and value.go
// writes fields. Append may leave out zero values that the Go types' own encoding would include; readers cannot
// distinguish the two.
//
// Append expects documents that the server itself has encoded. For other documents it may return an error, but
// never a wrong result. The caller then decodes and encodes the Go type.
package transcode

import (
	"encoding/binary"
	"errors"
	"reflect"
)

// errForm is returned for a document that does not match its type.
var errForm = errors.New("transcode: the document does not have the form of its type")

// Append appends the protobuf encoding of doc, a JSON object of m's type, to buf.
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
		f, ok := m.fields[string(key)]
		if !ok || s.peek() == 'n' { // null is equivalent to absent
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

// append writes a field, nested in the messages of the structs that embed its struct.
func (f *field) append(buf []byte, s *scanner) ([]byte, error) {
	if f.embedded == nil {
		return f.value.append(buf, s, f.tag)
	}
	buf, start := Open(buf, f.embedded.tag)
	buf, err := (&field{tag: f.tag, value: f.value, embedded: f.embedded.outer}).append(buf, s)
	return Close(buf, start), err
}

// A nested message or string is preceded by its length, which is unknown until it is written. Open reserves one
// byte for it, and Close inserts more if needed.

// Open begins a length-delimited field. It returns the start of the content for Close.
func Open(buf []byte, tag Tag) (_ []byte, at int) {
	buf = append(tag.append(buf), 0)
	return buf, len(buf)
}

// Close ends the field with the content that starts at at.
func Close(buf []byte, at int) []byte {
	size := len(buf) - at
	if size < 0x80 {
		buf[at-1] = byte(size)
		return buf
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(size))
	buf = append(buf, length[:n-1]...) // extends buf
	copy(buf[at+n-1:], buf[at:at+size])
	copy(buf[at-1:], length[:n])
	return buf
}

// AppendSized adds a length-delimited field: a string, bytes or a message.
func AppendSized[T ~string | ~[]byte](buf []byte, tag Tag, content T) []byte {
	return append(binary.AppendUvarint(tag.append(buf), uint64(len(content))), content...)
}

// Tag is a field's number and wire type, as encoded before the value.
type Tag uint32

// The wire types in use. https://protobuf.dev/programming-guides/encoding/#structure
const (
	varint = 0
	sized  = 2
)

// SizedTag returns the tag of a length-delimited field.
func SizedTag(number int) Tag { return Tag(number<<3 | sized) }

func (t Tag) append(buf []byte) []byte { return binary.AppendUvarint(buf, uint64(t)) }

// Of returns the Message for a Go struct type, or false if the type has an unsupported field. It is safe for
// concurrent use.
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
