package openapi

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
)

// path is a path of the API with its operations.
type path struct {
	path       string
	params     []parameter
	operations []operation
}

// operation is a method on a path, independent of the dialect.
type operation struct {
	// method is the HTTP method in lower case; action is Kubernetes' name for it.
	method, action  string
	id, description string
	tag             string
	kind            *schema.GroupVersionKind
	params          []parameter
	// body is the definition of the request's body, or empty.
	body         string
	bodyRequired bool
	consumes     []string
	// result is the definition of the response.
	result   string
	produces []string
	// codes are the HTTP status codes of success.
	codes []int
}

// mediaTypes has the media types that a kind's operations consume and produce.
type mediaTypes struct{ consumes, patches, produces, watches []string }

var (
	builtinTypes = mediaTypes{
		consumes: anyMediaType,
		patches: []string{"application/apply-patch+yaml", "application/json-patch+json",
			"application/merge-patch+json", "application/strategic-merge-patch+json"},
		produces: producedTypes,
		watches: append(slices.Clone(producedTypes), "application/json;stream=watch",
			"application/vnd.kubernetes.protobuf;stream=watch"),
	}
	customTypes = mediaTypes{
		consumes: []string{"application/json", "application/yaml"},
		patches: []string{"application/json-patch+json", "application/merge-patch+json",
			"application/apply-patch+yaml"},
		produces: []string{"application/json", "application/yaml"},
		watches:  []string{"application/json", "application/yaml"},
	}
	producedTypes = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	anyMediaType  = []string{"*/*"}
)

// pathsOf calls emit with each path of a group and version, and adds the definitions that they refer to to defs.
func pathsOf(defs *definitions, group *groupVersion, emit func(path)) {
	b := pathBuilder{
		definitions: defs,
		gv:          group.GroupVersion,
		prefix:      "/" + groupVersionPath(group.GroupVersion) + "/",
		emit:        emit,
		query:       queries(),
		status:      defs.add(reflect.TypeFor[metav1.Status]()),
		options:     defs.add(reflect.TypeFor[metav1.DeleteOptions]()),
		patchBody:   defs.add(reflect.TypeFor[metav1.Patch]()),
	}
	defs.markKind(b.status, schema.GroupVersionKind{Version: "v1", Kind: "Status"})
	defs.markKind(b.options, schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"})
	if !allCustom(group.resources) {
		b.index()
	}
	for _, r := range group.resources {
		b.resource(r)
	}
}

// pathBuilder builds the paths of one group and version.
type pathBuilder struct {
	*definitions
	gv                         schema.GroupVersion
	prefix                     string
	query                      query
	status, options, patchBody string
	// custom and types belong to the resource whose paths are being built.
	custom bool
	types  mediaTypes
	emit   func(path)
}

// index adds the path that lists the version's resources, and the kinds that each group and version has besides its
// resources. As in Kubernetes, groups with only custom kinds have neither.
func (b *pathBuilder) index() {
	event := b.add(reflect.TypeFor[metav1.WatchEvent]())
	b.markKind(event, schema.GroupVersionKind{Version: "v1", Kind: "WatchEvent"})
	b.markKind(event, b.gv.WithKind("WatchEvent"))
	b.markKind(b.options, b.gv.WithKind("DeleteOptions"))
	list := b.add(reflect.TypeFor[metav1.APIResourceList]())
	b.markKind(list, schema.GroupVersionKind{Version: "v1", Kind: "APIResourceList"})
	b.emit(path{path: b.prefix, operations: []operation{{
		method: "get", id: "get" + b.id("APIResources"), description: "get available resources",
		tag: tagName(b.gv), result: list, produces: producedTypes, codes: []int{200},
	}}})
}

// id returns an operation's id without its verb: the group, the version and the operation's subject.
func (b *pathBuilder) id(subject string) string {
	return groupName(b.gv.Group) + identifier(b.gv.Version, true) + identifier(subject, true)
}

func (b *pathBuilder) resource(r *api.Resource) {
	b.custom, b.types = custom(r) != nil, builtinTypes
	if b.custom {
		b.types = customTypes
	}
	object, list := b.addResource(r)
	scope, collection := "", b.prefix+r.Plural
	params := []parameter{paramPretty}
	if r.Namespaced {
		b.everywhere(r, list)
		scope, collection = "Namespaced", b.prefix+"namespaces/{namespace}/"+r.Plural
		params = []parameter{paramNamespace, paramPretty}
	}
	serves := func(verb string) bool { return !slices.Contains(r.UnsupportedVerbs, verb) }
	b.collection(r, scope, collection, params, object, list, serves)

	params = append([]parameter{paramName(r.Kind)}, params...)
	b.item(r, scope, collection+"/{name}", params, object, serves)
	for _, sub := range r.AllSubresources() {
		b.subresource(r, sub, scope, collection+"/{name}/"+sub.Name, params, object)
	}
	if b.custom {
		b.write(object)
		b.write(list)
	}
}

// everywhere adds the operation that lists a namespaced resource in all namespaces.
func (b *pathBuilder) everywhere(r *api.Resource, list string) {
	if slices.Contains(r.UnsupportedVerbs, "list") {
		return
	}
	op := b.list(r, "list"+b.id(r.Kind+"ForAllNamespaces"), list)
	p := path{path: b.prefix + r.Plural, params: sorted(op.params, []parameter{paramPretty})}
	op.params = nil
	p.operations = []operation{op}
	b.append(p)
}

func (b *pathBuilder) list(r *api.Resource, id, list string) operation {
	op := b.operation("get", "list", id, "list or watch objects of kind "+r.Kind, r.GVK())
	if b.custom {
		op.description = "list objects of kind " + r.Kind // as Kubernetes words it
	}
	op.params, op.result, op.produces = b.query.list, list, b.types.watches
	return op
}

func (b *pathBuilder) collection(r *api.Resource, scope, url string, params []parameter, object, list string,
	serves func(string) bool) {
	p := path{path: url, params: params}
	name := b.id(scope + r.Kind)
	if serves("list") {
		p.operations = append(p.operations, b.list(r, "list"+name, list))
	}
	if serves("create") {
		op := b.operation("post", "post", "create"+name, "create "+article(r.Kind), r.GVK())
		op.codes = []int{200, 201, 202}
		if r.CreateOnly { // in Kubernetes, these are parameters of the path
			p.params = sorted(p.params, b.query.create)
		} else {
			op.params = b.query.create
		}
		p.operations = append(p.operations, b.exchange(op, object))
	}
	if serves("deletecollection") {
		op := b.operation("delete", "deletecollection", "delete"+b.id("collection"+scope+r.Kind),
			"delete collection of "+r.Kind, r.GVK())
		op.params, op.body, op.result = b.query.deleteCollection, b.options, b.status
		p.operations = append(p.operations, op)
	}
	b.append(p)
}

func (b *pathBuilder) item(r *api.Resource, scope, url string, params []parameter, object string,
	serves func(string) bool) {
	p := path{path: url, params: params}
	name := b.id(scope + r.Kind)
	for _, verb := range []string{"get", "update", "patch"} {
		if serves(verb) {
			p.operations = append(p.operations, b.verb(verb, name, "the specified "+r.Kind, r.GVK(), object))
		}
	}
	if serves("delete") {
		op := b.operation("delete", "delete", "delete"+name, "delete "+article(r.Kind), r.GVK())
		op.params, op.codes = b.query.delete, []int{200, 202}
		op.body, op.result = b.options, b.status
		if r.Stored().ReturnDeleted {
			op.result = object
		}
		p.operations = append(p.operations, op)
	}
	b.append(p)
}

func (b *pathBuilder) subresource(r *api.Resource, sub api.Subresource, scope, url string, params []parameter,
	object string) {
	if sub.Connect {
		return // streams have no schema
	}
	p := path{path: url, params: slices.Clone(params)}
	kind := schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
	if kind != r.GVK() {
		if sub.New == nil {
			return // its schema is unknown; the server still serves the path
		}
		object = b.add(reflect.TypeOf(sub.New()).Elem())
		b.markKind(object, kind)
		if b.custom {
			kind = r.GVK() // as in Kubernetes
		} else {
			p.params[0] = paramName(sub.Kind)
		}
	}
	name := b.id(scope + r.Kind + upperFirst(sub.Name))
	for _, verb := range sub.Verbs {
		if verb != "create" {
			p.operations = append(p.operations, b.verb(verb, name, sub.Name+" of the specified "+r.Kind, kind, object))
			continue
		}
		op := b.operation("post", "post", "create"+name, "create "+sub.Name+" of "+article(r.Kind), kind)
		op.codes = []int{200, 201, 202}
		p.params = sorted(p.params, b.query.create) // in Kubernetes, these are parameters of the path
		p.operations = append(p.operations, b.exchange(op, object))
	}
	b.append(p)
}

// verb returns the operation of a get, update or patch.
func (b *pathBuilder) verb(verb, name, subject string, kind schema.GroupVersionKind, object string) operation {
	switch verb {
	case "get":
		op := b.operation("get", "get", "read"+name, "read "+subject, kind)
		op.result = object
		if b.custom {
			op.params = b.query.get
		}
		return op
	case "update":
		op := b.operation("put", "put", "replace"+name, "replace "+subject, kind)
		op.params, op.codes = b.query.update, []int{200, 201}
		return b.exchange(op, object)
	default:
		op := b.operation("patch", "patch", "patch"+name, "partially update "+subject, kind)
		op.params, op.codes = b.query.patch, []int{200, 201}
		op.body, op.bodyRequired, op.consumes, op.result = b.patchBody, true, b.types.patches, object
		return op
	}
}

func (b *pathBuilder) operation(method, action, id, description string, kind schema.GroupVersionKind) operation {
	return operation{
		method: method, action: action, id: id, description: description,
		tag: tagName(b.gv), kind: &kind, consumes: b.types.consumes, produces: b.types.produces,
		codes: []int{200},
	}
}

// exchange makes object the body of both the request and the response.
func (b *pathBuilder) exchange(op operation, object string) operation {
	op.body, op.bodyRequired, op.result = object, true, object
	return op
}

// append adds a path if it has operations.
func (b *pathBuilder) append(p path) {
	if len(p.operations) > 0 {
		b.emit(p)
	}
}

// article prefixes the kind with an article, except for a plural such as Endpoints.
func article(kind string) string {
	switch {
	case strings.HasSuffix(kind, "s") && !strings.HasSuffix(kind, "ss"):
		return kind
	case strings.ContainsRune("AEIOUaeiou", rune(kind[0])):
		return "an " + kind
	}
	return "a " + kind
}
