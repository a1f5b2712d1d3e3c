package openapi

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api"
)

// V3Paths returns the names of the version 3 documents, in the order of registration. There is one for each group and
// version, named after its path ("api/v1", "apis/apps/v1").
func V3Paths(s *api.Snapshot) []string {
	var paths []string
	for _, gv := range groupVersions(s) {
		paths = append(paths, groupVersionPath(gv.GroupVersion))
	}
	return paths
}

// v3 describes one group and version. version is the server's version (info.version).
func (gv *groupVersion) v3(version string) ([]byte, error) {
	defs, err := newDefinitions(dialectV3, gv.resources)
	if err != nil {
		return nil, err
	}
	w := v3Writer{defs}
	var doc, paths, components members
	pathsOf(defs, gv, func(p path) { paths.add(p.path, w.path(p)) })
	components.addObject("schemas", defs.all())
	components.add("securitySchemes", spec3.SecuritySchemes{"BearerToken": {
		SecuritySchemeProps: spec3.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
		}}})
	doc.add("openapi", "3.0.0")
	doc.add("info", info(version))
	doc.addObject("paths", &paths)
	doc.addObject("components", &components)
	return doc.object(), doc.err
}

// v3Writer writes paths in the dialect of version 3.
type v3Writer struct{ *definitions }

func (w v3Writer) path(p path) *spec3.Path {
	item := &spec3.Path{PathProps: spec3.PathProps{Parameters: w.parameters(p.params)}}
	for _, op := range p.operations {
		switch op.method {
		case "get":
			item.Get = w.operation(op)
		case "put":
			item.Put = w.operation(op)
		case "post":
			item.Post = w.operation(op)
		case "patch":
			item.Patch = w.operation(op)
		case "delete":
			item.Delete = w.operation(op)
		}
	}
	return item
}

func (w v3Writer) operation(op operation) *spec3.Operation {
	o := &spec3.Operation{OperationProps: spec3.OperationProps{
		Tags:        []string{op.tag},
		Description: op.description,
		OperationId: op.id,
		Parameters:  w.parameters(op.params),
		Responses:   w.responses(op),
	}}
	if op.body != "" {
		o.RequestBody = &spec3.RequestBody{RequestBodyProps: spec3.RequestBodyProps{
			Content: w.content(op.consumes, op.body), Required: op.bodyRequired,
		}}
	}
	if op.kind != nil {
		o.AddExtension("x-kubernetes-action", op.action)
		o.AddExtension(extensionKind, kindExtension(*op.kind))
	}
	return o
}

func (w v3Writer) responses(op operation) *spec3.Responses {
	codes := map[int]*spec3.Response{401: {ResponseProps: spec3.ResponseProps{Description: codeText[401]}}}
	for _, code := range op.codes {
		codes[code] = &spec3.Response{ResponseProps: spec3.ResponseProps{
			Description: codeText[code], Content: w.content(op.produces, op.result),
		}}
	}
	return &spec3.Responses{ResponsesProps: spec3.ResponsesProps{StatusCodeResponses: codes}}
}

func (w v3Writer) content(mediaTypes []string, definition string) map[string]*spec3.MediaType {
	content := make(map[string]*spec3.MediaType, len(mediaTypes))
	for _, mediaType := range mediaTypes {
		content[mediaType] = &spec3.MediaType{MediaTypeProps: spec3.MediaTypeProps{Schema: w.ref(definition)}}
	}
	return content
}

func (w v3Writer) parameters(params []parameter) []*spec3.Parameter {
	var out []*spec3.Parameter
	for _, p := range params {
		in := "query"
		if p.inPath {
			in = "path"
		}
		out = append(out, &spec3.Parameter{ParameterProps: spec3.ParameterProps{
			Name: p.name, In: in, Description: p.description, Required: p.inPath,
			Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{p.kind}, UniqueItems: true}},
		}})
	}
	return out
}

// codeText describes the HTTP status codes of responses.
var codeText = map[int]string{200: "OK", 201: "Created", 202: "Accepted", 401: "Unauthorized"}

func info(version string) *spec.Info {
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: version}}
}

// groupVersion is a group and version with its resources.
type groupVersion struct {
	schema.GroupVersion
	resources []*api.Resource
}

// groupVersions returns the groups and versions of a snapshot, in the order of registration.
func groupVersions(s *api.Snapshot) []groupVersion {
	var all []groupVersion
	indexes := map[schema.GroupVersion]int{}
	for _, r := range s.Resources {
		gv := r.GroupVersion()
		i, ok := indexes[gv]
		if !ok {
			i, indexes[gv] = len(all), len(all)
			all = append(all, groupVersion{GroupVersion: gv})
		}
		all[i].resources = append(all[i].resources, r)
	}
	return all
}
