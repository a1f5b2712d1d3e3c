package structural

import (
	"fmt"
	"slices"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// ruleType is the type of a value in expressions, with the sizes that the cost estimate needs.
type ruleType struct {
	cel    *celgo.Type
	fields map[string]*ruleType   // of an object, under their names in expressions
	names  map[string]*celgo.Type // the same, and also each property that is a keyword, unescaped
	item   *ruleType              // of a list or a map
	// maxSize is the maximum number of elements (items, entries, bytes), minBytes the minimum size in JSON.
	maxSize, minBytes int64
}

// maxRequest is the size in bytes of the largest request, as assumed by the estimates (kube-apiserver's limit).
const maxRequest = limits.MaxRequest

// Sizes of values in JSON, in bytes (k8s.io/apiserver/pkg/cel/limits.go).
const (
	emptySize       = 2 // "", [] or {}
	trueSize        = 4
	digitSize       = 1
	durationSize    = 3
	dateSize        = 12
	minDateTimeSize = 21
	maxTimeSize     = 32 // of a duration or a date-time
)

// ruleTypes holds the types of a schema's values.
type ruleTypes struct {
	named    map[string]*ruleType // the struct types, by their names in the compiler's messages
	declared map[declaration]*ruleType
}

// declaration identifies a value. Its type is declared once.
type declaration struct {
	schema *Schema
	root   bool
}

// fieldsOf returns the fields of a struct type to the CEL environment.
func (t *ruleTypes) fieldsOf(name string) (map[string]*celgo.Type, bool) {
	declared, ok := t.named[name]
	if !ok {
		return nil, false
	}
	return declared.names, true
}

// unique returns a type name for a value that is not reached through the fields of another type.
func (t *ruleTypes) unique() string { return fmt.Sprintf("%s.%d", rootType, len(t.declared)) }

// declare returns the type of a schema, or nil if expressions cannot access its values: values without a type, and
// lists and maps of them. root is true for the root of a custom resource or of an embedded one.
func (t *ruleTypes) declare(s *Schema, root bool, name string) *ruleType {
	if s == nil {
		return nil
	}
	if declared, ok := t.declared[declaration{s, root}]; ok {
		return declared
	}
	declared := t.declareNew(s, root, name)
	if t.declared == nil {
		t.declared = map[declaration]*ruleType{}
	}
	t.declared[declaration{s, root}] = declared
	return declared
}

func (t *ruleTypes) declareNew(s *Schema, root bool, name string) *ruleType {
	if s.types == integer|text { // the rule finds out at run time whether the value is an integer or a string
		return &ruleType{cel: celgo.DynType, maxSize: s.longest(maxRequest - emptySize), minBytes: digitSize}
	}
	if root {
		s = s.withTypeMeta()
	}
	switch s.types {
	case array:
		item := t.declare(s.items, s.items.isEmbedded(), name+".@idx")
		if item == nil {
			return nil
		}
		limit := (maxRequest - emptySize) / (item.minBytes + 1)
		return &ruleType{cel: celgo.ListType(item.cel), item: item, maxSize: atMost(s.bound().maxItems, limit),
			minBytes: emptySize}
	case object:
		return t.declareObject(s, name)
	case text:
		return s.declareText()
	case boolean:
		return &ruleType{cel: celgo.BoolType, minBytes: trueSize}
	case number:
		return &ruleType{cel: celgo.DoubleType, minBytes: digitSize}
	case integer:
		return &ruleType{cel: celgo.IntType, minBytes: digitSize}
	}
	return nil
}

func (t *ruleTypes) declareObject(s *Schema, name string) *ruleType {
	if s.additional != nil {
		item := t.declare(s.additional, s.additional.embedded, name+".@elem")
		if item == nil {
			return nil
		}
		const keySize = 6 // of the shortest key with its punctuation
		limit := (maxRequest - emptySize) / (item.minBytes + keySize)
		return &ruleType{cel: celgo.MapType(celgo.StringType, item.cel), item: item,
			maxSize: atMost(s.bound().maxProperties, limit), minBytes: emptySize}
	}
	object := &ruleType{cel: celgo.ObjectType(name), fields: make(map[string]*ruleType, len(s.names)),
		names: make(map[string]*celgo.Type, len(s.names)), minBytes: emptySize}
	for _, property := range s.names {
		below := s.properties[property]
		escaped, nameable := cel.Escape(property)
		field := t.declare(below, below.embedded, name+"."+escaped)
		if field == nil {
			continue
		}
		if nameable {
			object.fields[escaped] = field
			object.names[escaped] = field.cel
			if cel.IsKeyword(property) {
				object.names[property] = field.cel
			}
		}
		if below.def == nil && slices.Contains(s.bound().required, property) {
			object.minBytes += int64(len(property)) + field.minBytes + 4
		}
	}
	if t.named == nil {
		t.named = map[string]*ruleType{}
	}
	t.named[name] = object
	return object
}

func (s *Schema) declareText() *ruleType {
	switch s.format {
	case "byte":
		limit := atMost(s.bound().maxLength, maxRequest-emptySize)
		return &ruleType{cel: celgo.BytesType, maxSize: limit, minBytes: emptySize}
	case "duration":
		return &ruleType{cel: celgo.DurationType, maxSize: maxTimeSize, minBytes: durationSize}
	case "date":
		return &ruleType{cel: celgo.TimestampType, maxSize: dateSize, minBytes: dateSize}
	case "date-time":
		return &ruleType{cel: celgo.TimestampType, maxSize: maxTimeSize, minBytes: minDateTimeSize}
	}
	longest := int64(maxRequest - emptySize)
	if enum := s.bound().enum; len(enum) > 0 {
		longest = 0
		for _, value := range enum {
			if word, ok := value.(string); ok {
				longest = max(longest, int64(len(word)))
			}
		}
	}
	return &ruleType{cel: celgo.StringType, maxSize: s.longest(longest), minBytes: emptySize}
}

// longest returns the maximum length of a string in bytes: maxLength counts characters, of up to four bytes.
func (s *Schema) longest(unless int64) int64 {
	if s.bound().maxLength == nil {
		return unless
	}
	return 4 * atMost(s.bound().maxLength, 0)
}

func atMost(bound *int64, unless int64) int64 {
	if bound == nil {
		return unless
	}
	return max(*bound, 0)
}

// bound returns the schema's checks, or empty ones if it has none.
func (s *Schema) bound() *checks {
	if s.checks == nil {
		return &checks{}
	}
	return s.checks
}

func (s *Schema) isEmbedded() bool { return s != nil && s.embedded }

// maxName limits an object's name. The shortest suffix that generateName adds is one character.
const maxName = int64(validation.DNS1123SubdomainMaxLength)

// typeMeta returns the fields of a root that rules may always read, even if the schema does not declare them.
func typeMeta(meta *Schema) map[string]*Schema {
	word := &Schema{types: text}
	return map[string]*Schema{"apiVersion": word, "kind": word, "metadata": {types: object,
		names: []string{"generateName", "name"}, properties: map[string]*Schema{
			"name": capped(meta, "name", maxName), "generateName": capped(meta, "generateName", maxName-1)}}}
}

// capped returns the schema of a string with the length of a name, or the shorter one that the schema sets.
func capped(meta *Schema, name string, limit int64) *Schema {
	if meta != nil && meta.properties[name] != nil {
		limit = min(limit, atMost(meta.properties[name].bound().maxLength, limit))
	}
	return &Schema{types: text, checks: &checks{maxLength: &limit}}
}

// withTypeMeta returns the schema with apiVersion, kind, metadata.name and metadata.generateName added.
func (s *Schema) withTypeMeta() *Schema {
	if s.typed != nil {
		return s.typed
	}
	if s.hasTypeMeta() {
		return s
	}
	typed := *s
	meta := typeMeta(s.properties["metadata"])
	typed.properties = make(map[string]*Schema, len(s.properties)+len(meta))
	for name, field := range s.properties {
		typed.properties[name] = field
	}
	for name, field := range meta {
		typed.properties[name] = field
	}
	typed.names = sortedNames(typed.properties)
	typed.typed = &typed
	return &typed
}

func (s *Schema) hasTypeMeta() bool {
	is := func(s *Schema, name string, t types) bool {
		return s != nil && s.properties[name] != nil && s.properties[name].types == t
	}
	meta := s.properties["metadata"]
	return is(s, "apiVersion", text) && is(s, "kind", text) && is(s, "metadata", object) && is(meta, "name", text) &&
		is(meta, "generateName", text)
}

// size implements cel.Sizes for a rule on a value of this type. The path begins with self or oldSelf.
func (t *ruleType) size(path []string) (uint64, bool) {
	for _, step := range path[1:] {
		switch {
		case step == "@keys" && t.item != nil && t.cel.Kind() == celgo.MapKind:
			t = &ruleType{maxSize: 0}
		case (step == "@items" || step == "@values") && t.item != nil:
			t = t.item
		case t.fields[step] != nil:
			t = t.fields[step]
		default:
			return 0, false
		}
	}
	return uint64(t.maxSize), true
}
