package openapi

import (
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api"
)

// v2 describes the whole API in one document. version is the server's version.
func v2(s *api.Snapshot, version string) ([]byte, error) {
	defs, err := newDefinitions(dialectV2, s.Resources)
	if err != nil {
		return nil, err
	}
	w := v2Writer{defs, map[string]spec.Parameter{}}
	var doc, paths members
	for _, gv := range groupVersions(s) {
		pathsOf(defs, &gv, func(p path) { paths.add(p.path, w.path(p)) })
	}
	doc.add("swagger", "2.0")
	doc.add("info", info(version))
	doc.addObject("paths", &paths)
	doc.addObject("definitions", defs.all())
	doc.add("parameters", w.shared)
	doc.add("securityDefinitions", spec.SecurityDefinitions{"BearerToken": {
		SecuritySchemeProps: spec.SecuritySchemeProps{
			Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication",
		}}})
	doc.add("security", []map[string][]string{{"BearerToken": {}}})
	return doc.object(), doc.err
}

// v2Writer writes paths in the dialect of version 2.
type v2Writer struct {
	*definitions
	// shared has the parameters. Each is written once and referred to.
	shared map[string]spec.Parameter
}

func (w v2Writer) path(p path) spec.PathItem {
	item := spec.PathItem{PathItemProps: spec.PathItemProps{Parameters: w.parameters(p.params)}}
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

func (w v2Writer) operation(op operation) *spec.Operation {
	o := &spec.Operation{OperationProps: spec.OperationProps{
		Description: op.description,
		ID:          op.id,
		Tags:        []string{op.tag},
		Schemes:     []string{"https"},
		Consumes:    op.consumes,
		Produces:    op.produces,
		Parameters:  w.parameters(op.params),
		Responses:   w.responses(op),
	}}
	if op.body != "" {
		o.Parameters = append([]spec.Parameter{{ParamProps: spec.ParamProps{
			Name: "body", In: "body", Required: op.bodyRequired, Schema: w.ref(op.body),
		}}}, o.Parameters...)
	}
	if op.kind != nil {
		o.AddExtension("x-kubernetes-action", op.action)
		o.AddExtension(extensionKind, kindExtension(*op.kind))
	}
	return o
}

func (w v2Writer) responses(op operation) *spec.Responses {
	codes := map[int]spec.Response{401: {ResponseProps: spec.ResponseProps{Description: codeText[401]}}}
	for _, code := range op.codes {
		codes[code] = spec.Response{ResponseProps: spec.ResponseProps{Description: codeText[code],
			Schema: w.ref(op.result)}}
	}
	return &spec.Responses{ResponsesProps: spec.ResponsesProps{StatusCodeResponses: codes}}
}

func (w v2Writer) parameters(params []parameter) []spec.Parameter {
	var out []spec.Parameter
	for _, p := range params {
		out = append(out, spec.Parameter{Refable: spec.Refable{Ref: spec.MustCreateRef("#/parameters/" + w.share(p))}})
	}
	return out
}

// share adds a parameter to the shared ones and returns its name there. The name includes a hash of the description,
// since parameters of the same name may have different descriptions, as fieldManager does.
func (w v2Writer) share(p parameter) string {
	sum := sha256.Sum256([]byte(p.kind + p.description))
	name := p.name + "-" + hex.EncodeToString(sum[:4])
	if _, ok := w.shared[name]; !ok {
		in := "query"
		if p.inPath {
			in = "path"
		}
		w.shared[name] = spec.Parameter{
			CommonValidations: spec.CommonValidations{UniqueItems: true},
			SimpleSchema:      spec.SimpleSchema{Type: p.kind},
			ParamProps:        spec.ParamProps{Name: p.name, In: in, Required: p.inPath, Description: p.description},
		}
	}
	return name
}
