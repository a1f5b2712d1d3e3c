package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
	"unsafe"
)

// schema lists the values to extract when the documents of a collection are scanned. It is immutable.
type schema struct {
	fields []string
	index  int // of the indexed field in fields, -1 without one
	root   *pathNode
}

// pathNode is one step of the JSON paths that the scanner follows. Off these paths, it only checks the
// syntax.
type pathNode struct {
	members []pathMember // of an object; few, so that a list beats a map
	element *pathNode    // of an array
	notes   []note       // the uses of the value that is found here
	field   int          // the index of the field that has this value, -1 if none
}

type pathMember struct {
	name string
	node *pathNode
}

type note uint8

const (
	noteMetadata note = iota + 1
	noteRevision
	noteName
	noteNamespace
	noteUID
	noteLabels
	noteOwner
)

func newSchema(o CollectionOptions) *schema {
	sc := &schema{fields: o.Fields, index: -1, root: &pathNode{field: -1}}
	metadata := sc.root.at("metadata")
	metadata.notes = append(metadata.notes, noteMetadata)
	for name, n := range map[string]note{
		"resourceVersion": noteRevision, "name": noteName, "namespace": noteNamespace, "uid": noteUID,
		"labels": noteLabels,
	} {
		member := metadata.at(name)
		member.notes = append(member.notes, n)
	}
	owners := metadata.at("ownerReferences")
	owners.element = &pathNode{field: -1}
	uid := owners.element.at("uid")
	uid.notes = append(uid.notes, noteOwner)
	for i, path := range o.Fields {
		n := sc.root
		for step := range strings.SplitSeq(path, ".") {
			n = n.at(step)
		}
		n.field = i
		if path == o.Index {
			sc.index = i
		}
	}
	return sc
}

func (n *pathNode) at(name string) *pathNode {
	for i := range n.members {
		if n.members[i].name == name {
			return n.members[i].node
		}
	}
	child := &pathNode{field: -1}
	n.members = append(n.members, pathMember{name, child})
	return child
}

func (n *pathNode) find(name []byte) *pathNode {
	for i := range n.members {
		if n.members[i].name == string(name) {
			return n.members[i].node
		}
	}
	return nil
}

func (n *pathNode) does(want note) bool {
	for _, have := range n.notes {
		if have == want {
			return true
		}
	}
	return false
}

// span is a value in the document: of a string, the part between the quotes.
type span struct {
	start, end int
	found      bool
	// unquote: it has escapes or broken UTF-8, so that its bytes are not its value.
	unquote bool
}

type labelSpan struct{ key, value span }

// scanner reads one document from front to back. It checks the syntax of the whole document, because the bytes are
// served unchanged, and notes the values that the schema lists.
type scanner struct {
	doc []byte
	pos int
	err error

	top, topEmpty           int // just behind the opening brace; 1 when the object is empty
	metadata, metadataEmpty int // the same of metadata, 0 when there is none
	metadataEnd             int // behind its closing brace
	revision                span
	name, namespace, uid    span
	labels                  []labelSpan
	owners                  []span
	fields                  []span
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// object makes the Object of a document that was stored at a revision: one scan, and one
// copy with the revision spliced in. All strings of the object point into the copy.
func (sc *schema) object(key Key, revision int64, doc []byte) (*Object, error) {
	s := scanners.Get().(*scanner)
	defer s.release()
	if err := s.scan(sc, doc); err != nil {
		return nil, fmt.Errorf("%s at revision %d: %w", key, revision, err)
	}
	return s.object(key, revision), nil
}

// release returns the scanner to the pool.
func (s *scanner) release() {
	s.doc = nil
	scanners.Put(s)
}

// object makes the Object of the document that was scanned last.
func (s *scanner) object(key Key, revision int64) *Object {
	spliced, shift := s.splice(revision)
	object := &Object{Key: key, Revision: revision, JSON: spliced}
	object.spliced, object.metadata = s.extents(shift)
	// The key's strings are usually parts of a path, which would be kept in memory for them alone.
	if name := s.text(s.name, spliced, shift); name == key.Name {
		object.Key.Name = name
	}
	if namespace := s.text(s.namespace, spliced, shift); namespace == key.Namespace {
		object.Key.Namespace = namespace
	}
	object.UID = s.text(s.uid, spliced, shift)
	if len(s.labels) > 0 {
		object.Labels = make(Labels, len(s.labels))
		for i, l := range s.labels {
			object.Labels[i] = Label{s.text(l.key, spliced, shift), s.text(l.value, spliced, shift)}
		}
	}
	if n := len(s.fields) + len(s.owners); n > 0 {
		values := make([]string, 0, n)
		for _, f := range s.fields {
			values = append(values, s.text(f, spliced, shift))
		}
		for _, o := range s.owners {
			values = append(values, s.text(o, spliced, shift))
		}
		object.Fields = values[:len(s.fields):len(s.fields)]
		if len(s.owners) > 0 {
			object.Owners = values[len(s.fields):]
		}
	}
	return object
}

// extents returns the positions of the splice and of metadata in the spliced document.
func (s *scanner) extents(sh shift) (spliced, metadata extent) {
	spliced = extent{sh.from, sh.from + sh.by}
	if s.metadata == 0 {
		end := spliced.end
		if s.topEmpty == 0 {
			end-- // the comma
		}
		return spliced, extent{spliced.start + len(`"metadata":`), end}
	}
	return spliced, extent{s.metadata - 1, s.metadataEnd + sh.by}
}

// shift maps positions of the document to positions of the spliced one.
type shift struct{ from, by int }

// splice copies the document with metadata.resourceVersion in it: in place of the one it
// has, as the first member of metadata, or within a metadata made for it.
func (s *scanner) splice(revision int64) ([]byte, shift) {
	var number [20]byte
	digits := strconv.AppendInt(number[:0], revision, 10)
	position, cut := s.metadata, 0
	before, after := `"resourceVersion":"`, `",`
	switch {
	case s.revision.found:
		position, cut = s.revision.start, s.revision.end-s.revision.start
		before, after = `"`, `"`
	case s.metadata == 0:
		position = s.top
		before, after = `"metadata":{"resourceVersion":"`, `"},`
		if s.topEmpty == 1 {
			after = `"}`
		}
	case s.metadataEmpty == 1:
		after = `"`
	}
	added := len(before) + len(digits) + len(after)
	out := make([]byte, 0, len(s.doc)-cut+added)
	out = append(out, s.doc[:position]...)
	out = append(out, before...)
	out = append(out, digits...)
	out = append(out, after...)
	out = append(out, s.doc[position+cut:]...)
	return out, shift{from: position + cut, by: added - cut}
}

// text returns the value of a span, as a string that points into the spliced document if possible.
func (s *scanner) text(sp span, spliced []byte, sh shift) string {
	if !sp.found || sp.start == sp.end {
		return ""
	}
	if sp.unquote {
		return unquote(s.doc[sp.start:sp.end])
	}
	start := sp.start
	if start >= sh.from {
		start += sh.by
	}
	return bytesAsString(spliced[start : start+sp.end-sp.start])
}

func unquote(b []byte) string {
	quoted := make([]byte, 0, len(b)+2)
	quoted = append(append(append(quoted, '"'), b...), '"')
	var v string
	// The scanner has checked the syntax, so there is no error. encoding/json replaces broken UTF-8.
	_ = json.Unmarshal(quoted, &v)
	return v
}

// bytesAsString returns b as a string, without a copy. b must not change as long as the string is in use.
func bytesAsString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (s *scanner) scan(sc *schema, doc []byte) error {
	*s = scanner{doc: doc, labels: s.labels[:0], owners: s.owners[:0], fields: s.fields[:0]}
	for range sc.fields {
		s.fields = append(s.fields, span{})
	}
	s.space()
	if s.peek() != '{' {
		return errors.New("not a JSON object")
	}
	s.top = s.pos + 1
	if !s.members(sc.root, 1) {
		return s.err
	}
	s.space()
	if s.pos != len(s.doc) {
		s.fail("data after the document")
	}
	return s.err
}

// maxDepth is encoding/json's.
const maxDepth = 10000

func (s *scanner) fail(what string) bool {
	if s.err == nil {
		s.err = fmt.Errorf("corrupt JSON: %s at byte %d", what, s.pos)
	}
	return false
}

// peek returns the byte at the position, 0 at the end.
func (s *scanner) peek() byte {
	if s.pos < len(s.doc) {
		return s.doc[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.doc) {
		switch s.doc[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// value reads one value at the position. n is nil where no value is extracted.
func (s *scanner) value(n *pathNode, depth int) bool {
	if depth > maxDepth {
		return s.fail("too deep")
	}
	if n != nil && n.does(noteMetadata) && s.peek() != '{' {
		return s.fail("metadata is not an object")
	}
	start, v := s.pos, span{}
	switch c := s.peek(); c {
	case '{', '[':
		if c == '{' && !s.members(n, depth) || c == '[' && !s.elements(n, depth) {
			return false
		}
		if n != nil && n.does(noteRevision) {
			s.revision = span{start: start, end: s.pos, found: true}
		}
		return true
	case '"':
		var ok bool
		if v, ok = s.string(); !ok {
			return false
		}
	case 't':
		if !s.literal("true") {
			return false
		}
		v = span{start: start, end: s.pos, found: true}
	case 'f':
		if !s.literal("false") {
			return false
		}
		v = span{start: start, end: s.pos, found: true}
	case 'n':
		if !s.literal("null") {
			return false
		}
	default:
		if !s.number() {
			return false
		}
		v = span{start: start, end: s.pos, found: true}
	}
	if n != nil {
		s.take(n, v, start)
	}
	return true
}

// take extracts a scalar. Names, UIDs and revisions count only as strings; v.start is behind the quote
// then.
func (s *scanner) take(n *pathNode, v span, start int) {
	if n.field >= 0 {
		s.fields[n.field] = v
	}
	isString := v.found && v.start == start+1
	for _, what := range n.notes {
		switch {
		case what == noteRevision:
			s.revision = span{start: start, end: s.pos, found: true}
		case !isString:
		case what == noteName:
			s.name = v
		case what == noteNamespace:
			s.namespace = v
		case what == noteUID:
			s.uid = v
		case what == noteOwner:
			s.owners = append(s.owners, v)
		}
	}
}

// members reads an object.
func (s *scanner) members(n *pathNode, depth int) bool {
	s.pos++
	isMetadata := n != nil && n.does(noteMetadata)
	if isMetadata {
		if s.metadata != 0 {
			return s.fail("a second metadata")
		}
		s.metadata = s.pos
	}
	areLabels := n != nil && n.does(noteLabels)
	s.space()
	if s.peek() == '}' {
		s.pos++
		if isMetadata {
			s.metadataEmpty, s.metadataEnd = 1, s.pos
		}
		if depth == 1 {
			s.topEmpty = 1
		}
		return true
	}
	for {
		s.space()
		key, ok := s.string()
		if !ok {
			return false
		}
		s.space()
		if s.peek() != ':' {
			return s.fail("no colon after a member's name")
		}
		s.pos++
		s.space()
		var member *pathNode
		if n != nil {
			member = n.find(s.bytes(key))
		}
		start := s.pos
		if !s.value(member, depth+1) {
			return false
		}
		if areLabels && s.doc[start] == '"' {
			value := span{start: start + 1, end: s.pos - 1, found: true}
			value.unquote = !plain(s.doc[value.start:value.end])
			s.labels = append(s.labels, labelSpan{key, value})
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			if isMetadata {
				s.metadataEnd = s.pos
			}
			return true
		default:
			return s.fail("neither comma nor brace after a member")
		}
	}
}

// elements reads an array.
func (s *scanner) elements(n *pathNode, depth int) bool {
	s.pos++
	var element *pathNode
	if n != nil {
		element = n.element
	}
	s.space()
	if s.peek() == ']' {
		s.pos++
		return true
	}
	for {
		s.space()
		if !s.value(element, depth+1) {
			return false
		}
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return true
		default:
			return s.fail("neither comma nor bracket after an element")
		}
	}
}

// bytes returns the value of a member's name.
func (s *scanner) bytes(sp span) []byte {
	if sp.unquote {
		return []byte(unquote(s.doc[sp.start:sp.end]))
	}
	return s.doc[sp.start:sp.end]
}

func (s *scanner) literal(word string) bool {
	if !strings.HasPrefix(bytesAsString(s.doc[s.pos:]), word) {
		return s.fail("unknown literal")
	}
	s.pos += len(word)
	return true
}

// string reads a string and returns the part between its quotes.
func (s *scanner) string() (span, bool) {
	if s.peek() != '"' {
		return span{}, s.fail("no string where one must be")
	}
	doc, i, high := s.doc, s.pos+1, byte(0)
	sp := span{start: i, found: true}
	for i < len(doc) {
		switch c := doc[i]; {
		case c == '"':
			sp.end = i
			s.pos = i + 1
			if high >= utf8.RuneSelf && !sp.unquote {
				sp.unquote = !utf8.Valid(doc[sp.start:sp.end])
			}
			return sp, true
		case c == '\\':
			sp.unquote = true
			n := escape(doc[i:])
			if n == 0 {
				s.pos = i
				return span{}, s.fail("bad escape")
			}
			i += n
		case c < ' ':
			s.pos = i
			return span{}, s.fail("control character in a string")
		default:
			high |= c
			i++
		}
	}
	s.pos = len(doc)
	return span{}, s.fail("string without end")
}

// escape returns the length of the escape that b begins with, 0 if it is none.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if !isHex(c) {
				return 0
			}
		}
		return 6
	}
	return 0
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func plain(b []byte) bool {
	for _, c := range b {
		if c == '\\' {
			return false
		}
		if c >= utf8.RuneSelf {
			return utf8.Valid(b) && !strings.Contains(bytesAsString(b), `\`)
		}
	}
	return true
}

// number reads -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return s.fail("no value where one must be")
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return s.fail("no digit after the decimal point")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return s.fail("no digit in the exponent")
		}
	}
	return true
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.doc) && s.doc[s.pos] >= '0' && s.doc[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}
