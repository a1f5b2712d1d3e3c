package structural

import (
	"slices"
	"strconv"
	"strings"
)

// maxUnknown limits the reported unknown fields, as sigs.k8s.io/json does for built-in kinds.
const maxUnknown = 100

// Prune drops the fields of a custom resource that the schema does not declare. It keeps apiVersion, kind and
// metadata, at the root and in embedded objects. If report is true, it returns the paths of the dropped fields,
// sorted, and at most the first 100 that it met.
func (s *Schema) Prune(obj map[string]any, report bool) (unknown []string) {
	root := Schema{}
	if s != nil {
		root = *s
	}
	root.embedded = true
	p := pruner{report: report}
	p.prune(obj, &root, false)
	slices.Sort(p.unknown)
	return p.unknown
}

// pruner is one walk over an object. path is maintained only if report is true.
type pruner struct {
	report  bool
	path    []string
	unknown []string
}

func isTypeOrMeta(field string) bool {
	return field == "apiVersion" || field == "kind" || field == "metadata"
}

// prune drops the unknown fields of a value. A nil schema declares none. preserve is true in the items of a list with
// x-kubernetes-preserve-unknown-fields: it applies to the items as well, but not to their declared properties.
func (p *pruner) prune(value any, s *Schema, preserve bool) {
	preserve = preserve || s != nil && s.preserve
	depth := len(p.path)
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			below, ok := s.pruned(name)
			switch {
			case ok:
				p.push(name)
				p.prune(field, below, false)
				p.path = p.path[:depth]
			case !preserve && !(s != nil && s.embedded && isTypeOrMeta(name)):
				p.drop(value, name)
			}
		}
	case []any:
		var items *Schema
		if s != nil {
			items = s.items
		}
		if preserve && items == nil {
			return
		}
		for i, item := range value {
			p.pushIndex(i)
			p.prune(item, items, preserve)
			p.path = p.path[:depth]
		}
	}
}

// pruned returns the schema for pruning a field's value, and whether the field is declared. It returns false for the
// metadata of an embedded object, which Coerce handles.
func (s *Schema) pruned(name string) (below *Schema, ok bool) {
	if s == nil || s.embedded && isTypeOrMeta(name) {
		return nil, false
	}
	return s.field(name)
}

func (p *pruner) push(name string) {
	switch {
	case !p.report:
	case len(p.path) > 0:
		p.path = append(p.path, "."+name)
	default:
		p.path = append(p.path, name)
	}
}

func (p *pruner) pushIndex(i int) {
	if p.report {
		p.path = append(p.path, "["+strconv.Itoa(i)+"]")
	}
}

func (p *pruner) drop(obj map[string]any, name string) {
	delete(obj, name)
	if p.report && len(p.unknown) < maxUnknown {
		depth := len(p.path)
		p.push(name)
		p.unknown = append(p.unknown, strings.Join(p.path, ""))
		p.path = p.path[:depth]
	}
}
