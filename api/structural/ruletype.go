package structural

import (
	"fmt"
	"slices"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// ruleType is the type of a value in expressions, with what the estimate of their costs needs.
type ruleType struct {
	cel    *celgo.Type
	fields map[string]*ruleType   // of an object, under their names in expressions
	names  map[string]*celgo.Type // those, and the properties that are keywords as they are
	item   *ruleType              // of a list or a map
	// most is how many elements a value can have (items, entries, bytes), least how many bytes of JSON it takes.
	most, least int64
}

// maxRequest is the size of the largest request that estimates assume, in bytes (kube-apiserver's limit).
const maxRequest = 3 << 20

// Sizes of values in JSON, in bytes (k8s.io/apiserver/pkg/cel/limits.go).
const (
	emptySize       = 2 // "", [] or {}
	trueSize        = 4
	digitSize       = 1
	durationSize    = 3
	dateSize        = 12
	minDateTimeSize = 21
	maxTimeSize     = 32 // of a duration or a date with its time
)

// ruleTypes are the types of a schema's values.
type ruleTypes struct {
	named    map[string]*ruleType // the struct types, by their names in the compiler's messages
	declared map[declaration]*ruleType
}

// declaration is a value whose type is declared once.
type declaration struct {
	schema *Schema
	root   bool
}

// fieldsOf is for the CEL environment.
func (t *ruleTypes) fieldsOf(name string) (map[string]*celgo.Type, bool) {
	of, known := t.named[name]
	if !known {
		return nil, false
	}
	return of.names, true
}

// unique is a name for the type of a value that no other type's fields lead to.
func (t *ruleTypes) unique() string { return fmt.Sprintf("%s.%d", rootType, len(t.declared)) }

// declare returns the type of a schema, or nil if expressions can't see its values: those without a type, and
// lists and maps of such. root is true for the root of a custom resource or of an embedded one.
func (t *ruleTypes) declare(s *Schema, root bool, name string) *ruleType {
	if s == nil {
		return nil
	}
	if of, known := t.declared[declaration{s, root}]; known {
		return of
	}
	of := t.declareNew(s, root, name)
	if t.declared == nil {
		t.declared = map[declaration]*ruleType{}
	}
	t.declared[declaration{s, root}] = of
	return of
}

func (t *ruleTypes) declareNew(s *Schema, root bool, name string) *ruleType {
	if s.types == integer|text { // the rule finds out which of them it is
		return &ruleType{cel: celgo.DynType, most: s.longest(maxRequest - emptySize), least: digitSize}
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
		most := (maxRequest - emptySize) / (item.least + 1)
		return &ruleType{cel: celgo.ListType(item.cel), item: item, most: atMost(s.bound().maxItems, most),
			least: emptySize}
	case object:
		return t.declareObject(s, name)
	case text:
		return s.declareText()
	case boolean:
		return &ruleType{cel: celgo.BoolType, least: trueSize}
	case number:
		return &ruleType{cel: celgo.DoubleType, least: digitSize}
	case integer:
		return &ruleType{cel: celgo.IntType, least: digitSize}
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
		most := (maxRequest - emptySize) / (item.least + keySize)
		return &ruleType{cel: celgo.MapType(celgo.StringType, item.cel), item: item,
			most: atMost(s.bound().maxProperties, most), least: emptySize}
	}
	of := &ruleType{cel: celgo.ObjectType(name), fields: make(map[string]*ruleType, len(s.names)),
		names: make(map[string]*celgo.Type, len(s.names)), least: emptySize}
	for _, property := range s.names {
		below := s.properties[property]
		escaped, nameable := cel.Escape(property)
		field := t.declare(below, below.embedded, name+"."+escaped)
		if field == nil {
			continue
		}
		if nameable {
			of.fields[escaped] = field
			of.names[escaped] = field.cel
			if cel.IsKeyword(property) {
				of.names[property] = field.cel
			}
		}
		if below.def == nil && slices.Contains(s.bound().required, property) {
			of.least += int64(len(property)) + field.least + 4
		}
	}
	if t.named == nil {
		t.named = map[string]*ruleType{}
	}
	t.named[name] = of
	return of
}

func (s *Schema) declareText() *ruleType {
	switch s.format {
	case "byte":
		most := atMost(s.bound().maxLength, maxRequest-emptySize)
		return &ruleType{cel: celgo.BytesType, most: most, least: emptySize}
	case "duration":
		return &ruleType{cel: celgo.DurationType, most: maxTimeSize, least: durationSize}
	case "date":
		return &ruleType{cel: celgo.TimestampType, most: dateSize, least: dateSize}
	case "date-time":
		return &ruleType{cel: celgo.TimestampType, most: maxTimeSize, least: minDateTimeSize}
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
	return &ruleType{cel: celgo.StringType, most: s.longest(longest), least: emptySize}
}

// longest is the length of a string in bytes: maxLength counts characters, of up to four bytes.
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

// bound are the schema's checks; of one that has none they are empty.
func (s *Schema) bound() *checks {
	if s.checks == nil {
		return &checks{}
	}
	return s.checks
}

func (s *Schema) isEmbedded() bool { return s != nil && s.embedded }

// maxName limits an object's name, whose shortest generated suffix is a character.
const maxName = int64(validation.DNS1123SubdomainMaxLength)

// typeMeta are the fields of a root that rules may read, whether the schema has them or not.
func typeMeta(meta *Schema) map[string]*Schema {
	word := &Schema{types: text}
	return map[string]*Schema{"apiVersion": word, "kind": word, "metadata": {types: object,
		names: []string{"generateName", "name"}, properties: map[string]*Schema{
			"name": capped(meta, "name", maxName), "generateName": capped(meta, "generateName", maxName-1)}}}
}

// capped is a string of a name's length, or of the shorter one that the schema gives it.
func capped(meta *Schema, name string, most int64) *Schema {
	if meta != nil && meta.properties[name] != nil {
		most = min(most, atMost(meta.properties[name].bound().maxLength, most))
	}
	return &Schema{types: text, checks: &checks{maxLength: &most}}
}

// withTypeMeta is the schema with apiVersion, kind, metadata.name and metadata.generateName.
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

// size is the cel.Sizes of a rule on a value of this type. The path begins with self or oldSelf.
func (t *ruleType) size(path []string) (most uint64, known bool) {
	for _, step := range path[1:] {
		switch {
		case step == "@keys" && t.item != nil && t.cel.Kind() == celgo.MapKind:
			t = &ruleType{most: 0}
		case (step == "@items" || step == "@values") && t.item != nil:
			t = t.item
		case t.fields[step] != nil:
			t = t.fields[step]
		default:
			return 0, false
		}
	}
	return uint64(t.most), true
}
