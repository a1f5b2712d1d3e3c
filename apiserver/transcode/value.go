package transcode

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// value reads one JSON value, other than null, and writes it as a field with the tag.
type value interface {
	append(buf []byte, s *scanner, tag Tag) ([]byte, error)
}

// text writes a JSON string, without its escapes.
type text struct{}

func (text) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.text()
	return AppendSized(buf, tag, b), err
}

type boolean struct{}

func (boolean) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.skip()
	switch string(b) {
	case "true":
		return append(tag.append(buf), 1), err
	case "false":
		return append(tag.append(buf), 0), err
	}
	return buf, errForm
}

type integer struct{}

func (integer) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.skip()
	if err != nil {
		return buf, err
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return buf, errForm
	}
	return binary.AppendUvarint(tag.append(buf), uint64(n)), nil
}

// base64Bytes is a byte slice, which JSON represents as a base64 string.
type base64Bytes struct{}

func (base64Bytes) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.text()
	if err != nil {
		return buf, err
	}
	buf, start := Open(buf, tag)
	if buf, err = base64.StdEncoding.AppendDecode(buf, b); err != nil {
		return buf, errForm
	}
	return Close(buf, start), nil
}

// message is an object with the fields of a Go struct.
type message struct{ *Message }

func (m message) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	buf, start := Open(buf, tag)
	buf, err := m.members(buf, s)
	return Close(buf, start), err
}

// list is an array. It writes the field once per element.
type list struct{ of value }

func (l list) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	more, err := s.first('[', ']')
	for ; more && err == nil; more, err = s.another(']') {
		if s.peek() == 'n' {
			return buf, errForm // the Go type would have a zero element here
		}
		if buf, err = l.of.append(buf, s, tag); err != nil {
			return buf, err
		}
	}
	return buf, err
}

// mapping is an object with arbitrary keys. It writes each entry as a message with a key and a value.
type mapping struct {
	of  value
	tag Tag // of the entry's value
}

func (m mapping) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	more, err := s.first('{', '}')
	for ; more && err == nil; more, err = s.another('}') {
		key, err := s.key()
		if err != nil {
			return buf, err
		}
		var start int
		buf, start = Open(buf, tag)
		buf = AppendSized(buf, SizedTag(1), key)
		if s.peek() == 'n' {
			_, err = s.skip()
		} else {
			buf, err = m.of.append(buf, s, m.tag)
		}
		if err != nil {
			return buf, err
		}
		buf = Close(buf, start)
	}
	return buf, err
}

// wrapped is a message that contains the value as its first field.
type wrapped struct{ value }

func (w wrapped) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	buf, start := Open(buf, tag)
	buf, err := w.value.append(buf, s, SizedTag(1))
	return Close(buf, start), err
}

// rawJSON is a message that contains arbitrary JSON as its first field.
type rawJSON struct{}

func (rawJSON) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.skip()
	buf, start := Open(buf, tag)
	return Close(AppendSized(buf, SizedTag(1), b), start), err
}

// timestamp is a string in JSON and a message with the seconds since 1970 in protobuf.
type timestamp struct{}

func (timestamp) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.text()
	if err != nil {
		return buf, err
	}
	t, err := time.Parse(time.RFC3339, string(b))
	if err != nil {
		return buf, errForm
	}
	buf, start := Open(buf, tag)
	if !t.IsZero() {
		buf = binary.AppendUvarint(append(buf, 1<<3|varint), uint64(t.Unix()))
	}
	return Close(buf, start), nil
}

// intOrString is a message with the fields type, intVal and strVal. The type determines which of the others is set.
type intOrString struct{}

func (intOrString) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	buf, start := Open(buf, tag)
	var err error
	if s.peek() == '"' {
		buf, err = text{}.append(append(buf, 1<<3|varint, 1), s, SizedTag(3))
	} else {
		buf, err = integer{}.append(append(buf, 1<<3|varint, 0), s, 2<<3|varint)
	}
	return Close(buf, start), err
}

// decoded uses the Go type, for rare types with their own encoding.
type decoded struct{ reflect.Type }

func (d decoded) append(buf []byte, s *scanner, tag Tag) ([]byte, error) {
	b, err := s.skip()
	if err != nil {
		return buf, err
	}
	v := reflect.New(d.Type).Interface()
	if err := json.Unmarshal(b, v); err != nil {
		return buf, fmt.Errorf("%w: %w", errForm, err)
	}
	raw, err := v.(marshaler).Marshal()
	return AppendSized(buf, tag, raw), err
}
