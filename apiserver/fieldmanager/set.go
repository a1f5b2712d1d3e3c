package fieldmanager

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// fieldSet is a set of paths in an object, in the form of a tree. A FieldsV1 document represents such a tree in
// JSON: {"f:metadata":{"f:labels":{".":{},"f:app":{}}}}.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
type fieldSet struct {
	// element is the last element of the path, escaped for a JSON string: f:name for a field, k:{\"name\":\"x\"}
	// for an item with keys, v:\"x\" for an item of a set.
	element string
	// member is set if the path itself is in the set.
	member bool
	// lost is set, in a set of changes between two objects, if the new object lacks the path. A lost path is not in
	// the set.
	lost bool
	// below contains the nested sets, sorted by compareElements.
	below []fieldSet
}

// fieldSets pools sets. They keep the capacity of their nested sets.
var fieldSets = sync.Pool{New: func() any { return new(fieldSet) }}

// release returns a set to the pool. No part of it may be used afterwards.
func (f *fieldSet) release() {
	*f = fieldSet{below: f.below[:0]}
	fieldSets.Put(f)
}

func (f *fieldSet) empty() bool { return !f.member && !f.lost && len(f.below) == 0 }

// begin adds a nested set, which must be filled before end is called. It reuses the capacity of previous nested
// sets.
func (f *fieldSet) begin(element string) *fieldSet {
	n := len(f.below)
	if n == cap(f.below) {
		f.below = append(slices.Grow(f.below, max(n, 4)), fieldSet{element: element})
		return &f.below[n]
	}
	f.below = f.below[:n+1]
	part := &f.below[n]
	*part = fieldSet{element: element, below: part.below[:0]}
	return part
}

// end removes the nested set added last if it is empty.
func (f *fieldSet) end() {
	if last := len(f.below) - 1; f.below[last].empty() {
		f.below = f.below[:last]
	}
}

// loses reports whether any path is lost.
func (f *fieldSet) loses() bool {
	for i := range f.below {
		if f.below[i].loses() {
			return true
		}
	}
	return f.lost
}

// members returns the set without its lost paths.
func (f *fieldSet) members() fieldSet {
	if !f.loses() {
		return *f
	}
	result := fieldSet{element: f.element, member: f.member}
	for i := range f.below {
		if part := f.below[i].members(); !part.empty() {
			result.below = append(result.below, part)
		}
	}
	return result
}

// without removes the changed paths, including lost ones. It reports whether the set contained any of them.
func (f *fieldSet) without(changed *fieldSet) bool {
	took := false
	if f.member && (changed.member || changed.lost) {
		f.member, took = false, true
	}
	rest, j := f.below[:0], 0
	for _, part := range f.below {
		for j < len(changed.below) && compareElements(changed.below[j].element, part.element) < 0 {
			j++
		}
		if j < len(changed.below) && changed.below[j].element == part.element {
			took = part.without(&changed.below[j]) || took
		}
		if !part.empty() {
			rest = append(rest, part)
		}
	}
	f.below = rest
	return took
}

// union returns the union of two sets. The result shares nested sets with both.
func union(a, b fieldSet) fieldSet {
	both := fieldSet{element: a.element, member: a.member || b.member}
	x, y := a.below, b.below
	for len(x) > 0 || len(y) > 0 {
		switch c := compareFirst(x, y); {
		case c < 0:
			both.below, x = append(both.below, x[0]), x[1:]
		case c > 0:
			both.below, y = append(both.below, y[0]), y[1:]
		default:
			both.below, x, y = append(both.below, union(x[0], y[0])), x[1:], y[1:]
		}
	}
	return both
}

func compareFirst(x, y []fieldSet) int {
	switch {
	case len(y) == 0:
		return -1
	case len(x) == 0:
		return 1
	}
	return compareElements(x[0].element, y[0].element)
}

// fieldsV1 returns the set in the form used in managedFields.
func (f *fieldSet) fieldsV1() *metav1.FieldsV1 {
	return &metav1.FieldsV1{Raw: f.appendTo(make([]byte, 0, f.size()))}
}

// size returns the number of bytes that appendTo writes.
func (f *fieldSet) size() int {
	if len(f.below) == 0 {
		return len("{}")
	}
	n := len("{") // each nested set is followed by a comma or the brace
	if f.member {
		n += len(`".":{},`)
	}
	for i := range f.below {
		n += len(`"":,`) + len(f.below[i].element) + f.below[i].size()
	}
	return n
}

// appendTo appends the set as a FieldsV1 document.
func (f *fieldSet) appendTo(doc []byte) []byte {
	doc = append(doc, '{')
	if f.member && len(f.below) > 0 {
		doc = append(doc, `".":{},`...)
	}
	for i := range f.below {
		if i > 0 {
			doc = append(doc, ',')
		}
		doc = append(doc, '"')
		doc = append(doc, f.below[i].element...)
		doc = append(doc, '"', ':')
		doc = f.below[i].appendTo(doc)
	}
	return append(doc, '}')
}

var errFieldSet = errors.New("no FieldsV1 document as this server writes them")

// parseFieldSet parses a FieldsV1 document that this server has written.
func parseFieldSet(doc string) (fieldSet, error) {
	var f fieldSet
	rest, ok := f.parse(doc)
	if !ok || rest != "" {
		return fieldSet{}, errFieldSet
	}
	return f, nil
}

// parse parses an object and returns the remaining text.
func (f *fieldSet) parse(doc string) (string, bool) {
	doc, ok := strings.CutPrefix(doc, "{")
	for first := true; ok; first = false {
		if rest, end := strings.CutPrefix(doc, "}"); end {
			return rest, true
		}
		if !first {
			if doc, ok = strings.CutPrefix(doc, ","); !ok {
				break
			}
		}
		var name string
		if name, doc, ok = parseName(doc); !ok {
			break
		}
		if name == "." {
			f.member = true
			doc, ok = strings.CutPrefix(doc, "{}")
			continue
		}
		if len(name) < 2 || name[1] != ':' || strings.IndexByte(elementTypes, name[0]) < 0 {
			break // the library drops such an element
		}
		part := f.begin(name)
		doc, ok = part.parse(doc)
		part.member = part.member || len(part.below) == 0
	}
	return "", false
}

// mayMeet reports whether the FieldsV1 document contains a path of the set. It skips the other paths without
// parsing them. It returns true for a document with a syntax error.
func (f *fieldSet) mayMeet(doc string) bool {
	rest, meets := f.meet(doc)
	return meets || rest != ""
}

// meet parses an object and returns the remaining text. It stops when it finds a path of the set.
func (f *fieldSet) meet(doc string) (rest string, meets bool) {
	doc, ok := strings.CutPrefix(doc, "{")
	if rest, end := strings.CutPrefix(doc, "}"); end || !ok {
		return rest, f.member || f.lost
	}
	for {
		name, rest, ok := parseName(doc)
		if !ok {
			return doc, true
		}
		switch i := f.find(name); {
		case name == "." && (f.member || f.lost):
			return "", true
		case i < 0:
			rest = skipObject(rest)
		default:
			var meets bool
			if rest, meets = f.below[i].meet(rest); meets {
				return "", true
			}
		}
		if doc, ok = strings.CutPrefix(rest, ","); !ok {
			return strings.TrimPrefix(rest, "}"), !strings.HasPrefix(rest, "}")
		}
	}
}

// within reports whether the FieldsV1 document contains all paths of the set. It returns false for a document with
// a syntax error.
func (f *fieldSet) within(doc string) bool {
	rest, within := f.covered(doc)
	return within && rest == ""
}

// covered parses an object and returns the remaining text. It stops when a path of the set is missing.
func (f *fieldSet) covered(doc string) (rest string, covered bool) {
	doc, ok := strings.CutPrefix(doc, "{")
	if rest, end := strings.CutPrefix(doc, "}"); end || !ok {
		return rest, ok && len(f.below) == 0 // an empty object represents the path itself
	}
	member, found := false, 0
	for {
		name, rest, ok := parseName(doc)
		if !ok {
			return doc, false
		}
		switch i := f.find(name); {
		case name == ".":
			member, rest = true, skipObject(rest)
		case i < 0:
			rest = skipObject(rest)
		default:
			var ok bool
			if rest, ok = f.below[i].covered(rest); !ok {
				return rest, false
			}
			found++
		}
		if doc, ok = strings.CutPrefix(rest, ","); !ok {
			rest, ok = strings.CutPrefix(rest, "}")
			return rest, ok && found == len(f.below) && (member || !f.member)
		}
	}
}

// find returns the index of the nested set with the element, or -1.
func (f *fieldSet) find(element string) int {
	for i := range f.below {
		if f.below[i].element == element {
			return i
		}
	}
	return -1
}

// skipObject returns the text after an object.
func skipObject(doc string) string {
	depth := 0
	for i := 0; i < len(doc); i++ {
		switch doc[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return doc[i+1:]
			}
		case '"':
			for i++; i < len(doc) && doc[i] != '"'; i++ {
				if doc[i] == '\\' {
					i++
				}
			}
		}
	}
	return ""
}

// parseName parses a name and the colon.
func parseName(doc string) (name, rest string, ok bool) {
	if doc == "" || doc[0] != '"' {
		return "", "", false
	}
	for i := 1; i+1 < len(doc); i++ {
		switch doc[i] {
		case '\\':
			i++
		case '"':
			return doc[1:i], doc[i+2:], doc[i+1] == ':'
		}
	}
	return "", "", false
}

// canonical rewrites a client's FieldsV1 document in the server's form.
func canonical(doc []byte) ([]byte, error) {
	var paths fieldpath.Set
	if err := paths.FromJSON(bytes.NewReader(doc)); err != nil {
		return nil, fmt.Errorf("decoding managed fields: %w", err)
	}
	out, err := paths.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("encoding managed fields: %w", err)
	}
	return htmlSafe(out), nil
}

// htmlSafe escapes a document as encoding/json does when it embeds a document.
func htmlSafe(doc []byte) []byte {
	var b bytes.Buffer
	json.HTMLEscape(&b, doc)
	return b.Bytes()
}

// elementTypes lists the first characters of path elements in their order: field, keys of an item, value of an
// item, index of an item.
const elementTypes = "fkvi"

// compareElements orders elements as Kubernetes does: fields by name, items by keys or value, and numbers before
// strings.
func compareElements(a, b string) int {
	if a == b {
		return 0
	}
	if a[0] == b[0] && a[0] != 'f' {
		return compareItemElements(a, b)
	}
	if a[0] != b[0] {
		return strings.IndexByte(elementTypes, a[0]) - strings.IndexByte(elementTypes, b[0])
	}
	if strings.IndexByte(a, '\\') >= 0 || strings.IndexByte(b, '\\') >= 0 {
		return strings.Compare(unescape(a), unescape(b))
	}
	return strings.Compare(a, b)
}

// compareItemElements has a fast path for elements that first differ within a plain string or a whole number. For
// other elements it uses the library that defines the order.
func compareItemElements(a, b string) int {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	if start := strings.LastIndexByte(a[:i], ':') + 1; beginsValue(a, start) {
		x, y := number(a[start:]), number(b[start:])
		if x != "" && y != "" && x != y {
			m, _ := strconv.Atoi(x) // number returns only digits
			n, _ := strconv.Atoi(y)
			return m - n
		}
	}
	// The first difference may also follow a string that ends in a colon. x and y are equal then.
	if start := strings.LastIndex(a[:i], `\"`); start > 1 && a[start-1] == ':' {
		x, _, okX := strings.Cut(a[start+2:], `\`)
		y, _, okY := strings.Cut(b[start+2:], `\`)
		if okX && okY && x != y && simpleEnd(a[start+2+len(x):]) && simpleEnd(b[start+2+len(y):]) {
			return strings.Compare(x, y)
		}
	}
	x, errX := fieldpath.DeserializePathElement(unescape(a))
	y, errY := fieldpath.DeserializePathElement(unescape(b))
	if errX != nil || errY != nil {
		return strings.Compare(a, b)
	}
	return x.Compare(y)
}

// beginsValue reports whether the value of an item's key, or an item's own value, starts at the offset. A colon
// inside a string may look similar.
func beginsValue(element string, at int) bool {
	if at == len("v:") {
		return true
	}
	return at > 4 && element[at-3:at] == `\":` && element[at-4] != '\\'
}

// number returns the whole number at the start of a value if a comma, a brace or the end follows. It returns "" if
// there is no number or it exceeds nine digits.
func number(s string) string {
	if end := strings.IndexAny(s, ",}"); end >= 0 {
		s = s[:end]
	}
	if len(s) > 9 || strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return s
}

// simpleEnd reports whether a string ends here, and not in an escape.
func simpleEnd(rest string) bool { return strings.HasPrefix(rest, `\"`) }

func unescape(s string) string {
	var out string
	if json.Unmarshal([]byte(`"`+s+`"`), &out) != nil {
		return s
	}
	return out
}
