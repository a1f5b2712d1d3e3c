package apiextensions

import (
	"errors"
	"maps"
	"slices"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// props is a schema in the type that kube-apiserver checks.
type props = internal.JSONSchemaProps

// node is a schema with the schemas below it. They are in the order that errors follow.
type node struct {
	*props
	properties             []child
	items, additional, not *node
	itemList               []*node // if items is a list
	allOf, oneOf, anyOf    []*node
	definitions            []child
	dependencies           []child
	others                 []*node // patternProperties and additionalItems
	// err is the first reason why this schema, or one below it, has no structural form.
	err error
}

// child is a schema with a name.
type child struct {
	name string
	*node
}

// grow returns the node of a schema, or nil if there is no schema.
func grow(p *props) *node {
	if p == nil {
		return nil
	}
	n := &node{props: p, err: unsupported(p), not: grow(p.Not), allOf: growList(p.AllOf), oneOf: growList(p.OneOf),
		anyOf: growList(p.AnyOf), properties: growMap(p.Properties), definitions: growMap(p.Definitions)}
	for _, other := range growMap(p.PatternProperties) {
		n.others = append(n.others, other.node)
	}
	if p.AdditionalItems != nil && p.AdditionalItems.Schema != nil {
		n.others = append(n.others, grow(p.AdditionalItems.Schema))
	}
	if p.Items != nil {
		n.items, n.itemList = grow(p.Items.Schema), growList(p.Items.JSONSchemas)
	}
	if p.AdditionalProperties != nil {
		n.additional = grow(p.AdditionalProperties.Schema)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Dependencies)) {
		if s := p.Dependencies[name].Schema; s != nil {
			n.dependencies = append(n.dependencies, child{name, grow(s)})
		}
	}
	n.findError()
	return n
}

func growList(list []props) []*node {
	var nodes []*node
	for i := range list {
		nodes = append(nodes, grow(&list[i]))
	}
	return nodes
}

func growMap(named map[string]props) []child {
	if len(named) == 0 {
		return nil
	}
	children := make([]child, 0, len(named))
	for _, name := range slices.Sorted(maps.Keys(named)) {
		p := named[name]
		children = append(children, child{name, grow(&p)})
	}
	return children
}

// unsupported returns an error for a field that a structural schema cannot have.
func unsupported(p *props) error {
	switch {
	case p.ID != "":
		return errors.New("OpenAPIV3Schema 'id' is not supported")
	case p.Schema != "":
		return errors.New("OpenAPIV3Schema 'schema' is not supported")
	case p.Ref != nil && *p.Ref != "":
		return errors.New("OpenAPIV3Schema '$ref' is not supported")
	case len(p.PatternProperties) > 0:
		return errors.New("OpenAPIV3Schema 'patternProperties' is not supported")
	case len(p.Dependencies) > 0:
		return errors.New("OpenAPIV3Schema 'dependencies' is not supported")
	case p.AdditionalItems != nil:
		return errors.New("OpenAPIV3Schema 'additionalItems' is not supported")
	case len(p.Definitions) > 0:
		return errors.New("OpenAPIV3Schema 'definitions' is not supported")
	}
	return nil
}

// findError sets err from the schemas below this one.
func (n *node) findError() {
	note := func(err error) {
		if n.err == nil {
			n.err = err
		}
	}
	below := func(nodes ...*node) {
		for _, s := range nodes {
			if s != nil {
				note(s.err)
			}
		}
	}
	below(n.not)
	below(n.allOf...)
	below(n.anyOf...)
	below(n.oneOf...)
	if keep := n.XPreserveUnknownFields; keep != nil && !*keep {
		note(errors.New("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"))
	}
	if len(n.itemList) > 0 {
		note(errors.New("OpenAPIV3Schema 'items' must be a schema, but is an array"))
	}
	below(n.items)
	for _, p := range n.properties {
		below(p.node)
	}
	below(n.additional)
}

// each calls f with the node and the nodes below it, in a fixed order.
func (n *node) each(f func(*node)) {
	if n == nil {
		return
	}
	f(n)
	for _, list := range [][]*node{{n.items}, n.itemList, n.allOf, n.anyOf, n.oneOf, {n.not}} {
		for _, below := range list {
			below.each(f)
		}
	}
	for _, p := range n.properties {
		p.each(f)
	}
	for _, list := range [][]*node{{n.additional}, n.others} {
		for _, below := range list {
			below.each(f)
		}
	}
	for _, list := range [][]child{n.definitions, n.dependencies} {
		for _, c := range list {
			c.each(f)
		}
	}
}

// property returns a property of the schema, or nil.
func (n *node) property(name string) *node {
	i, found := slices.BinarySearchFunc(n.properties, name, func(c child, name string) int {
		switch {
		case c.name < name:
			return -1
		case c.name > name:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return n.properties[i].node
}

// convert returns the definition as the internal type.
func convert(crd *definition) (*internal.CustomResourceDefinition, error) {
	converted := &internal.CustomResourceDefinition{}
	err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, converted,
		nil)
	return converted, err
}
