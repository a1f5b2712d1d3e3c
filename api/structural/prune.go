package structural

import (
	"slices"
	"strconv"
	"strings"
)

// maxUnknown limits the unknown fields that are reported, as sigs.k8s.io/json does for built-in kinds.
const maxUnknown = 100

// Prune drops the fields of a custom resource that the schema does not know. It leaves apiVersion, kind and
// metadata alone, at the root and in embedded objects. If report, it returns the paths of what it dropped,
// sorted; of more than 100 those that it met first.
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

// pruner is one walk. path is only kept if it reports.
type pruner struct {
	report  bool
	path    []string
	unknown []string
}

func isTypeOrMeta(field string) bool {
	return field == "apiVersion" || field == "kind" || field == "metadata"
}

// prune drops the unknown fields of a value; a nil schema knows none. preserve is true in the items of a list
// that preserves unknown fields: it holds for them as well, but not for what their schema names.
func (p *pruner) prune(value any, s *Schema, preserve bool) {
	preserve = preserve || s != nil && s.preserve
	depth := len(p.path)
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			below, known := s.pruned(name)
			switch {
			case known:
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

// pruned is the schema by which a field's value is pruned, and whether it is: an embedded object's own
// metadata is not (Coerce does that).
func (s *Schema) pruned(name string) (below *Schema, known bool) {
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
