package transcode

import (
	"bytes"
	"encoding/json"
)

// scanner reads JSON sequentially.
type scanner struct {
	doc []byte
	pos int
}

// peek returns the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.doc) {
		switch c := s.doc[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// first enters an object or array, and reports whether it has content.
func (s *scanner) first(begin, end byte) (more bool, err error) {
	if s.peek() != begin {
		return false, errForm
	}
	s.pos++
	if s.peek() != end {
		return true, nil
	}
	s.pos++
	return false, nil
}

// another continues after a member or element, and reports whether another one follows.
func (s *scanner) another(end byte) (more bool, err error) {
	switch s.peek() {
	case ',':
		s.pos++
		return true, nil
	case end:
		s.pos++
		return false, nil
	}
	return false, errForm
}

// key reads a member's name and the colon.
func (s *scanner) key() ([]byte, error) {
	key, err := s.text()
	if err == nil && s.peek() != ':' {
		err = errForm
	}
	s.pos++
	return key, err
}

// text reads a string. The result aliases the document if the string has no escapes.
func (s *scanner) text() ([]byte, error) {
	if s.peek() != '"' {
		return nil, errForm
	}
	from := s.pos
	plain, err := s.pastString()
	if err != nil || plain {
		return s.doc[from+1 : max(s.pos-1, from+1)], err
	}
	var unescaped string
	if json.Unmarshal(s.doc[from:s.pos], &unescaped) != nil {
		return nil, errForm
	}
	return []byte(unescaped), nil
}

// pastString skips a string and reports whether it has no escapes.
func (s *scanner) pastString() (plain bool, err error) {
	plain = true
	for offset := s.pos + 1; ; {
		n := bytes.IndexByte(s.doc[offset:], '"')
		if n < 0 {
			return plain, errForm
		}
		escape := bytes.IndexByte(s.doc[offset:offset+n], '\\')
		if escape < 0 {
			s.pos = offset + n + 1
			return plain, nil
		}
		plain = false
		if offset += escape + 2; offset > len(s.doc) {
			return plain, errForm
		}
	}
}

// skip skips a value of any kind and returns it.
func (s *scanner) skip() ([]byte, error) {
	s.peek()
	from, depth := s.pos, 0
	for s.pos < len(s.doc) {
		switch s.doc[s.pos] {
		case '"':
			if _, err := s.pastString(); err != nil {
				return nil, err
			}
			s.pos--
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 { // the end of the enclosing value, after a number or literal
				return s.doc[from:s.pos], nil
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return s.doc[from:s.pos], nil
			}
			s.pos++
			continue
		default:
			s.pos++
			continue
		}
		s.pos++
		if depth == 0 {
			return s.doc[from:s.pos], nil
		}
	}
	return nil, errForm
}
