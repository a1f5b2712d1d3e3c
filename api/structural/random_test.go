package structural

import (
	"math/rand/v2"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// random generates schemas, and objects that nearly conform to them.
type random struct {
	*rand.Rand
	plain bool // without combinations of schemas
}

func newRandom(seed uint64) random { return random{Rand: rand.New(rand.NewPCG(seed, 17))} }

// one reports true once in n times.
func (r random) one(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r random, from ...T) T { return from[r.IntN(len(from))] }

var fieldNames = []string{"a", "b", "c", "d"}

// schema returns a structural schema with the bounds of its type, and sometimes a combination of schemas.
func (r random) schema(depth int) *apiextensionsv1.JSONSchemaProps {
	p := &apiextensionsv1.JSONSchemaProps{Nullable: r.one(5)}
	kinds := []string{"string", "integer", "number", "boolean"}
	if depth > 0 {
		kinds = append(kinds, "object", "object", "array", "array")
	}
	switch p.Type = pick(r, kinds...); p.Type {
	case "object":
		r.fields(p, depth)
	case "array":
		p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: r.schema(depth - 1)}
		r.list(p)
	case "string":
		if r.one(6) {
			p.Type, p.XIntOrString = "", true
		}
	}
	if r.one(6) && p.Type != "" {
		p.Default = r.json(r.value(p, 2))
	}
	r.bounds(p)
	if !r.plain && r.one(3) {
		r.junctors(p, depth)
	}
	return p
}

func (r random) fields(p *apiextensionsv1.JSONSchemaProps, depth int) {
	if r.one(4) {
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: r.one(2)}
		if r.one(2) {
			p.AdditionalProperties.Allows, p.AdditionalProperties.Schema = true, r.schema(depth-1)
		}
		return
	}
	p.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
	for _, name := range fieldNames[:r.IntN(len(fieldNames)+1)] {
		p.Properties[name] = *r.schema(depth - 1)
	}
	if r.one(4) {
		p.XPreserveUnknownFields = new(true)
	}
	if r.one(3) {
		p.Required = []string{pick(r, fieldNames...)}
	}
}

func (r random) list(p *apiextensionsv1.JSONSchemaProps) {
	switch {
	case r.one(3):
		p.XListType = new("set")
	case r.one(2) && p.Items.Schema.Type == "object" && len(p.Items.Schema.Properties) > 1:
		p.XListType, p.XListMapKeys = new("map"), []string{"a"}
		if r.one(2) {
			p.XListMapKeys = append(p.XListMapKeys, "b")
		}
	}
}

// bounds adds some checks to a schema or a branch, of its type or of another.
func (r random) bounds(p *apiextensionsv1.JSONSchemaProps) {
	if r.one(3) {
		p.MinLength, p.MaxLength = new(int64(r.IntN(3))), new(int64(r.IntN(4)))
	}
	if r.one(4) {
		p.Pattern = pick(r, "^a", "b$", "^.{1,2}$")
	}
	if r.one(4) {
		p.Format = pick(r, "date", "ipv4", "byte", "uuid", "date-time", "int32", "int64", "float", "double",
			"duration", "unheard", "k8s-short-name")
	}
	if r.one(3) {
		p.Minimum, p.ExclusiveMinimum = new(r.bound()), r.one(2)
	}
	if r.one(3) {
		p.Maximum, p.ExclusiveMaximum = new(r.bound()), r.one(2)
	}
	if r.one(6) {
		p.MultipleOf = new(pick(r, 1, 2, 0.5, 0.1, 3e10))
	}
	if r.one(4) {
		p.MinItems, p.MaxItems = new(int64(r.IntN(2))), new(int64(r.IntN(3)))
		p.MinProperties, p.MaxProperties = new(int64(r.IntN(2))), new(int64(r.IntN(3)))
	}
	if r.one(6) {
		for range 1 + r.IntN(3) {
			p.Enum = append(p.Enum, *r.json(r.any(1)))
		}
	}
}

func (r random) bound() float64 { return pick(r, 0, 1, 2, 1.5, -3, 2.5, 3e9, 1e19, 1<<53) }

func (r random) junctors(p *apiextensionsv1.JSONSchemaProps, depth int) {
	branches := func() (list []apiextensionsv1.JSONSchemaProps) {
		for range 1 + r.IntN(3) {
			list = append(list, *r.branch(p, depth))
		}
		return list
	}
	switch r.IntN(4) {
	case 0:
		p.AnyOf = branches()
	case 1:
		p.OneOf = branches()
	case 2:
		p.AllOf = branches()
	default:
		p.Not = r.branch(p, depth)
	}
}

// branch returns a schema with checks only, for fields that p has.
func (r random) branch(p *apiextensionsv1.JSONSchemaProps, depth int) *apiextensionsv1.JSONSchemaProps {
	b := &apiextensionsv1.JSONSchemaProps{}
	if p.XIntOrString {
		b.Type = pick(r, "integer", "string")
	}
	r.bounds(b)
	for _, name := range fieldNames {
		if field, ok := p.Properties[name]; ok && r.one(2) {
			if b.Properties == nil {
				b.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
			}
			b.Properties[name] = *r.branch(&field, depth-1)
		}
	}
	if p.Items != nil && r.one(2) {
		b.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: r.branch(p.Items.Schema, depth-1)}
	}
	if r.one(3) {
		b.Required = []string{pick(r, fieldNames...)}
	}
	if depth > 0 && r.one(3) {
		r.junctors(b, depth-1)
	}
	return b
}

// value returns a value that conforms to a schema more often than not.
func (r random) value(p *apiextensionsv1.JSONSchemaProps, depth int) any {
	switch {
	case r.one(12):
		return r.any(depth)
	case r.one(12):
		return nil
	case p.XIntOrString:
		return pick[any](r, r.text(), int64(r.IntN(5)))
	}
	switch p.Type {
	case "object":
		obj := map[string]any{}
		for _, name := range fieldNames {
			if field, ok := p.Properties[name]; ok && !r.one(3) {
				obj[name] = r.value(&field, depth-1)
			}
		}
		if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
			for i := range r.IntN(3) {
				obj["k"+strconv.Itoa(i)] = r.value(p.AdditionalProperties.Schema, depth-1)
			}
		}
		if r.one(4) {
			obj["unknown"] = r.any(depth)
		}
		return obj
	case "array":
		list := make([]any, 0)
		for range r.IntN(4) {
			list = append(list, r.value(p.Items.Schema, depth-1))
		}
		if len(list) > 0 && r.one(2) {
			list = append(list, runtime.DeepCopyJSONValue(list[r.IntN(len(list))]))
		}
		return list
	case "string":
		return r.text()
	case "integer":
		return pick[any](r, int64(r.IntN(7))-2, int64(1)<<40, float64(r.IntN(3)), 1e20)
	case "number":
		return pick[any](r, int64(r.IntN(5)), r.bound(), 0.25, 1e40)
	case "boolean":
		return r.one(2)
	}
	return r.any(depth)
}

func (r random) text() string {
	return pick(r, "", "a", "ab", "abc", "äöü", "b", "2026-01-02", "10.0.0.1", "YWJj", "3s", "A", "short-name")
}

func (r random) any(depth int) any {
	switch r.IntN(8) {
	case 0:
		if depth <= 0 {
			return int64(3)
		}
		return map[string]any{pick(r, fieldNames...): r.any(depth - 1), "x": r.any(depth - 1)}
	case 1:
		if depth <= 0 {
			return "deep"
		}
		return []any{r.any(depth - 1), r.any(depth - 1)}
	case 2:
		return nil
	case 3:
		return r.one(2)
	case 4:
		return pick(r, 0.5, 1.0, 65.0, 1e20)
	case 5:
		return int64(r.IntN(70))
	}
	return r.text()
}

// json returns the value in the form of a field of a schema.
func (r random) json(value any) *apiextensionsv1.JSON {
	return &apiextensionsv1.JSON{Raw: []byte(document(value))}
}

// object returns a custom resource.
func (r random) object(p *apiextensionsv1.JSONSchemaProps) map[string]any {
	for {
		if obj, ok := r.value(p, 3).(map[string]any); ok {
			return obj
		}
	}
}

// changed returns a copy with some parts changed.
func (r random) changed(value any) any {
	if r.one(8) {
		return r.any(2)
	}
	switch value := value.(type) {
	case map[string]any:
		other := map[string]any{}
		for _, name := range sortedNames(value) {
			if !r.one(8) {
				other[name] = r.changed(value[name])
			}
		}
		return other
	case []any:
		other := make([]any, len(value))
		for i, item := range value {
			other[i] = r.changed(item)
		}
		if r.one(3) {
			slices.Reverse(other)
		}
		return other
	}
	return value
}
