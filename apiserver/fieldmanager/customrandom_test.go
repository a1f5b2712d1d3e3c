package fieldmanager

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// props is a short name for JSONSchemaProps.
type props = apiextensionsv1.JSONSchemaProps

// randomKinds generates structural schemas, and objects that mostly match them.
type randomKinds struct {
	*rand.Rand
	// faulty allows occasional values with a type that differs from the schema.
	faulty bool
}

func newRandomKinds(seed uint64) *randomKinds {
	return &randomKinds{Rand: rand.New(rand.NewPCG(seed, 23))}
}

// one returns true once in n calls on average.
func (r *randomKinds) one(n int) bool { return r.IntN(n) == 0 }

func pickOf[T any](r *randomKinds, from ...T) T { return from[r.IntN(len(from))] }

var randomFields = []string{"a", "b", "c", "d", `q"u`, "x/y.z", "<t>", "é"}

// root returns the schema of a version.
func (r *randomKinds) root() *props {
	p := &props{Type: "object", Properties: map[string]props{"spec": *r.object(4), "status": *r.object(2),
		"metadata": {Type: "object"}}}
	if r.one(3) {
		p.Properties["data"] = *r.schema(3)
	}
	if r.one(12) {
		p.Properties["metadata"] = props{Type: "object", Properties: map[string]props{"name": {Type: "string"}}}
	}
	if r.one(8) {
		p.XPreserveUnknownFields = new(true)
	}
	return p
}

func (r *randomKinds) schema(depth int) *props {
	if depth <= 0 || r.one(4) {
		return r.leaf()
	}
	if r.one(3) {
		return r.list(depth)
	}
	return r.object(depth)
}

// leaf returns the schema of a scalar or of an arbitrary value.
func (r *randomKinds) leaf() *props {
	switch r.IntN(9) {
	case 0:
		return &props{XIntOrString: true}
	case 1:
		return &props{XPreserveUnknownFields: new(true), Nullable: r.one(2)}
	case 2:
		return &props{Type: "string", Format: pickOf(r, "date-time", "byte", "uuid", "")}
	case 3:
		return &props{Type: "object"}
	}
	return r.key()
}

// key returns a schema that is allowed for keys.
func (r *randomKinds) key() *props {
	return &props{Type: pickOf(r, "string", "string", "integer", "number", "boolean"), Nullable: r.one(4)}
}

func (r *randomKinds) object(depth int) *props {
	p := &props{Type: "object", Nullable: r.one(5)}
	switch r.IntN(8) {
	case 0:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: r.schema(depth - 1)}
	case 1:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
	case 2:
		p.XPreserveUnknownFields = new(true)
		if r.one(2) {
			r.properties(p, depth)
		}
	case 3:
		p.XEmbeddedResource = true
		if r.one(2) {
			p.XPreserveUnknownFields = new(true)
		}
		r.properties(p, depth)
	default:
		r.properties(p, depth)
	}
	if r.one(6) {
		p.XMapType = new(pickOf(r, "atomic", "granular"))
	}
	return p
}

func (r *randomKinds) properties(p *props, depth int) {
	p.Properties = map[string]props{}
	for range r.IntN(5) {
		field := *r.schema(depth - 1)
		if (field.Type == "integer" || field.Type == "string") && r.one(6) {
			field.Default = jsonOf(r.scalar(&field))
		}
		p.Properties[pickOf(r, randomFields...)] = field
	}
}

func (r *randomKinds) list(depth int) *props {
	p := &props{Type: "array", Nullable: r.one(6)}
	item := r.schema(depth - 1)
	switch r.IntN(5) {
	case 0:
		p.XListType = new("atomic")
	case 1:
		p.XListType = new("set")
		if item = r.key(); r.one(8) { // accepted by Kubernetes, but impossible to track
			item = &props{Type: "object", XMapType: new("atomic")}
		}
	case 2, 3:
		item = r.keyed(p, depth)
	}
	p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: item}
	return p
}

// keyed turns p into a list with keys, and returns the schema of its items.
func (r *randomKinds) keyed(p *props, depth int) *props {
	item := &props{Type: "object"}
	r.properties(item, depth)
	p.XListType, p.XListMapKeys = new("map"), []string{pickOf(r, randomFields...)}
	if r.one(2) {
		if second := pickOf(r, randomFields...); second != p.XListMapKeys[0] {
			p.XListMapKeys = append(p.XListMapKeys, second)
		}
	}
	for _, name := range p.XListMapKeys {
		key := *r.key()
		key.Nullable = false
		if r.one(3) {
			key.Default = jsonOf(r.scalar(&key))
		} else {
			item.Required = append(item.Required, name)
		}
		item.Properties[name] = key
	}
	if r.one(8) {
		item.XMapType = new("atomic")
	}
	return item
}

// evolve returns the schema for another version. Granular values may become atomic and vice versa. No version lacks
// fields of another one, because kube-apiserver loses such fields.
func (r *randomKinds) evolve(p *props) *props {
	p = p.DeepCopy()
	r.change(p)
	return p
}

func (r *randomKinds) change(p *props) {
	switch {
	case r.one(4) && p.Type == "object" && p.XMapType == nil:
		p.XMapType = new("atomic")
	case r.one(4) && p.Type == "array":
		p.XListType, p.XListMapKeys = nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		field := p.Properties[name]
		if name != "metadata" {
			r.change(&field)
		}
		p.Properties[name] = field
	}
	if p.Items != nil {
		r.change(p.Items.Schema)
	}
	if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
		r.change(p.AdditionalProperties.Schema)
	}
}

// shrink removes some fields of a schema. The same seed removes the same fields in all versions.
func shrink(p *props, seed uint64) {
	r := newRandomKinds(seed)
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		field := p.Properties[name]
		if drop := r.one(10); drop && name != "metadata" && !slices.Contains(p.Required, name) && field.Default == nil {
			delete(p.Properties, name)
			continue
		}
		shrink(&field, r.Uint64())
		p.Properties[name] = field
	}
	if p.Items != nil {
		shrink(p.Items.Schema, r.Uint64())
	}
}

func jsonOf(value any) *apiextensionsv1.JSON {
	doc, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return &apiextensionsv1.JSON{Raw: doc}
}

func (r *randomKinds) scalar(p *props) any {
	switch p.Type {
	case "integer":
		return int64(r.IntN(4))
	case "number":
		return pickOf[any](r, int64(r.IntN(3)), 0.5, 1.0, 2.0, 1e21, -1.25e-7)
	case "boolean":
		return r.one(2)
	}
	return pickOf(r, "", "a", "b", "c", `q"\`, "<&>", "ü", "a:b", "2026-01-02")
}

// value returns a value that matches the schema, or occasionally not if faulty is set.
func (r *randomKinds) value(p *props, depth int) any {
	switch {
	case r.faulty && r.one(60):
		return r.any(2)
	case p.Nullable && r.one(5):
		return nil
	case p.XIntOrString:
		return pickOf[any](r, int64(r.IntN(3)), "50%")
	}
	switch p.Type {
	case "":
		return r.any(3)
	case "object":
		return r.fields(p, depth)
	case "array":
		list := []any{}
		for range r.IntN(4) {
			if depth > 0 {
				list = append(list, r.value(p.Items.Schema, depth-1))
			}
		}
		if len(list) > 0 && r.one(6) { // a duplicate item or duplicate keys
			list = append(list, r.edited(p.Items.Schema, list[r.IntN(len(list))], depth-1))
		}
		return list
	}
	return r.scalar(p)
}

func (r *randomKinds) fields(p *props, depth int) map[string]any {
	obj := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		field, some := p.Properties[name], depth > 0 && r.IntN(len(p.Properties)+2) < 5
		if some || slices.Contains(p.Required, name) {
			obj[name] = r.value(&field, depth-1)
		}
	}
	if p.XEmbeddedResource {
		obj["apiVersion"], obj["kind"] = "v1", pickOf(r, "Pod", "Node")
		obj["metadata"] = r.metadata()
	}
	if a := p.AdditionalProperties; a != nil {
		for range r.IntN(4) {
			name := "k" + strconv.Itoa(r.IntN(3))
			if obj[name] = r.any(2); a.Schema != nil {
				obj[name] = r.value(a.Schema, depth-1)
			}
		}
	}
	if p.XPreserveUnknownFields != nil && r.one(2) {
		obj["unknown"] = r.any(3)
	}
	return obj
}

func (r *randomKinds) metadata() map[string]any {
	meta := map[string]any{"name": pickOf(r, "m", "n")}
	if r.one(2) {
		meta["labels"] = map[string]any{pickOf(r, "app", "x.io/y"): pickOf(r, "1", "2")}
	}
	if r.one(3) {
		meta["annotations"] = map[string]any{pickOf(r, "a", "b"): pickOf(r, "1", "2")}
	}
	if r.one(3) {
		meta["finalizers"] = []any{pickOf(r, "a.io/a", "b.io/b"), pickOf(r, "c.io/c", "d.io/d")}
	}
	if r.one(3) {
		meta["ownerReferences"] = []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "p",
			"uid": pickOf(r, "u1", "u2"), "controller": r.one(2)}}
	}
	return meta
}

func (r *randomKinds) any(depth int) any {
	switch r.IntN(9) {
	case 0, 1, 2:
		obj := map[string]any{}
		for range r.IntN(3) {
			obj[pickOf(r, randomFields...)] = r.any(depth - 1)
		}
		if depth > 0 {
			return obj
		}
	case 3:
		list := []any{}
		for range r.IntN(3) {
			list = append(list, r.any(depth-1))
		}
		if depth > 0 {
			return list
		}
	case 4:
		return nil
	case 5:
		return r.one(2)
	case 6:
		return int64(r.IntN(3))
	}
	return r.scalar(&props{Type: pickOf(r, "string", "number")})
}

// edited returns a copy of a value with some parts changed.
func (r *randomKinds) edited(p *props, old any, depth int) any {
	if p == nil || r.one(10) {
		return runtime.DeepCopyJSONValue(old)
	}
	if r.one(8) {
		return r.value(p, depth)
	}
	switch old := old.(type) {
	case map[string]any:
		fresh := map[string]any{}
		if p.Type == "object" {
			fresh = r.fields(p, depth)
		}
		obj := map[string]any{}
		for _, name := range fieldsOfBoth(nil, old, fresh) {
			was, had := old[name]
			is, has := fresh[name]
			below := schemaOf(p, name)
			switch {
			case !had && r.one(3), had && has && r.one(6):
				obj[name] = is
			case had && below != nil && r.one(2):
				obj[name] = r.edited(below, was, depth-1)
			case had && (!r.one(8) || slices.Contains(p.Required, name)):
				obj[name] = runtime.DeepCopyJSONValue(was)
			}
		}
		return obj
	case []any:
		var list = []any{}
		for _, item := range old {
			if p.Items == nil {
				list = append(list, runtime.DeepCopyJSONValue(item))
			} else if !r.one(6) {
				list = append(list, r.edited(p.Items.Schema, item, depth-1))
			}
		}
		if p.Items != nil && r.one(3) {
			list = append(list, r.value(p.Items.Schema, depth-1))
		}
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		return list
	}
	return r.value(p, depth)
}

func schemaOf(p *props, name string) *props {
	if field, ok := p.Properties[name]; ok {
		return &field
	}
	if p.AdditionalProperties != nil {
		return p.AdditionalProperties.Schema
	}
	return nil
}
