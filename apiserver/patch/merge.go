// Package patch applies patches to JSON documents and to decoded objects. It has pure functions: documents, patches and
// objects come in and go out. It knows neither requests nor the server.
//
// merge.go implements RFC 7396. strategic.go and jsonpatch.go limit the work of the libraries for strategic merge
// patches and JSON patches. named.go patches and decodes only the members of an object that a patch names.
package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Merge applies an RFC 7396 merge patch to an object. Only the members that the patch names are parsed;
// all else is copied as bytes. Both are valid JSON.
func Merge(doc, patch []byte) ([]byte, error) {
	return appendMerged(make([]byte, 0, len(doc)+len(patch)), doc, patch)
}

// appendMerged appends the patched object to buf. A value that is not an object is replaced by one.
func appendMerged(buf, doc, patch []byte) ([]byte, error) {
	changes, err := membersOf(patch)
	if err != nil {
		return nil, fmt.Errorf("decode the patch: %w", err)
	}
	var members []member
	if firstByte(doc) == '{' {
		if members, err = membersOf(doc); err != nil {
			return nil, fmt.Errorf("decode the object: %w", err)
		}
	}
	pending := byName(changes)
	empty := len(buf) + 1
	buf = append(buf, '{')
	for _, m := range members {
		change, changed := pending[m.name]
		delete(pending, m.name)
		if changed && firstByte(change) == 'n' {
			continue
		}
		if buf = appendName(buf, empty, m.name); !changed {
			buf = append(buf, m.value...)
		} else if buf, err = appendChange(buf, m.value, change); err != nil {
			return nil, err
		}
	}
	for _, m := range changes { // that have no place in the object yet
		change, left := pending[m.name]
		delete(pending, m.name)
		if !left || firstByte(change) == 'n' {
			continue
		}
		if buf, err = appendChange(appendName(buf, empty, m.name), nil, change); err != nil {
			return nil, err
		}
	}
	return append(buf, '}'), nil
}

func appendChange(buf, value, change []byte) ([]byte, error) {
	if firstByte(change) == '{' {
		return appendMerged(buf, value, change)
	}
	return append(buf, change...), nil
}

// appendName begins a member; empty is the length of buf before the first one.
func appendName(buf []byte, empty int, name string) []byte {
	if len(buf) > empty {
		buf = append(buf, ',')
	}
	if encoding.PlainString(name) {
		buf = append(append(append(buf, '"'), name...), '"')
	} else {
		quoted, _ := json.Marshal(name) // a string always has JSON
		buf = append(buf, quoted...)
	}
	return append(buf, ':')
}

// member is one of a JSON object: its name, and its value's bytes without white space around.
type member struct {
	name  string
	value []byte
}

// byName returns the values by name. Of two members with one name, the last counts.
func byName(members []member) map[string][]byte {
	values := make(map[string][]byte, len(members))
	for _, m := range members {
		values[m.name] = m.value
	}
	return values
}

var errNoObject = errors.New("not a JSON object")

// membersOf splits an object into its members, and does not parse their values. It trusts that the document is valid.
// In an invalid one, it only makes sure not to read beyond the end.
func membersOf(doc []byte) ([]member, error) {
	i := skipSpace(doc, 0)
	if i == len(doc) || doc[i] != '{' {
		return nil, errNoObject
	}
	var members []member
	for i = skipSpace(doc, i+1); i < len(doc) && doc[i] == '"'; i = skipSpace(doc, i+1) {
		end := skipString(doc, i)
		name, err := nameOf(doc[i:end])
		if err != nil {
			return nil, err
		}
		if i = skipSpace(doc, end); i == len(doc) || doc[i] != ':' {
			return nil, errNoObject
		}
		start := skipSpace(doc, i+1)
		i = skipValue(doc, start)
		members = append(members, member{name, doc[start:i]})
		if i = skipSpace(doc, i); i == len(doc) || doc[i] != ',' {
			break
		}
	}
	if i >= len(doc) || doc[i] != '}' {
		return nil, errNoObject
	}
	return members, nil
}

// nameOf reads a member's name.
func nameOf(quoted []byte) (name string, err error) {
	if len(quoted) < 2 {
		return "", errNoObject
	}
	if inner := quoted[1 : len(quoted)-1]; !slices.Contains(inner, '\\') {
		return string(inner), nil
	}
	if err := json.Unmarshal(quoted, &name); err != nil {
		return "", err
	}
	return name, nil
}

func skipSpace(doc []byte, i int) int {
	for i < len(doc) && (doc[i] == ' ' || doc[i] == '\n' || doc[i] == '\t' || doc[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the end of the string that begins at i.
func skipString(doc []byte, i int) int {
	for i++; i < len(doc) && doc[i] != '"'; i++ {
		if doc[i] == '\\' {
			i++
		}
	}
	return min(i+1, len(doc))
}

// skipValue returns the end of the value that begins at i.
func skipValue(doc []byte, i int) int {
	depth := 0
	for i < len(doc) {
		switch c := doc[i]; c {
		case '"':
			if i = skipString(doc, i); depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // of the object around
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}

// firstByte identifies the kind of a value, 0 if there is none.
func firstByte(value []byte) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}
