//go:build e2e

package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

const validatedSchema = `{"type":"object","properties":{"spec":{"type":"object","required":["foo"],"properties":{
	"foo":{"type":"string"},"cronSpec":{"type":"string","pattern":"^(\\d+|\\*)(/\\d+)?(\\s+(\\d+|\\*)(/\\d+)?){4}$"},
	"ports":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["containerPort"],
		"items":{"type":"object","required":["containerPort"],"properties":{"containerPort":{"type":"integer"}}}}}}}}`

const embeddingSchema = `{"type":"object","properties":{"spec":{"type":"object","properties":{"template":{"type":"object",
	"x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"object",
	"x-kubernetes-preserve-unknown-fields":true}}}}}}}`

// post creates an object from its document, with fieldValidation.
func (c *cluster) post(crd *apiextensionsv1.CustomResourceDefinition, fieldValidation, doc string) (warnings []string,
	err error) {
	result := c.core.Discovery().RESTClient().Post().AbsPath(c.path(crd, "v1")).
		Param("fieldValidation", fieldValidation).SetHeader("Content-Type", "application/json").
		Body([]byte(header(crd, doc))).Do(c.ctx)
	for _, w := range result.Warnings() {
		warnings = append(warnings, w.Text)
	}
	return warnings, result.Error()
}

// apply applies an object on the server, with fieldValidation Strict.
func (c *cluster) apply(crd *apiextensionsv1.CustomResourceDefinition, name, doc string) error {
	return c.core.Discovery().RESTClient().Patch(types.ApplyPatchType).AbsPath(c.path(crd, "v1"), name).
		Param("fieldManager", "conformance").Param("fieldValidation", "Strict").
		Body([]byte(header(crd, doc))).Do(c.ctx).Error()
}

// header adds the kind to a document, which begins with {.
func header(crd *apiextensionsv1.CustomResourceDefinition, doc string) string {
	return `{"apiVersion":"` + crd.Spec.Group + `/v1","kind":"` + crd.Spec.Names.Kind + `",` + doc[1:]
}

// FieldValidation should create/apply a CR with unknown fields for CRD with no validation schema
func TestFieldValidation_AcceptsUnknownFieldsWithoutASchema(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Free", version("v1", plainSchema)))
	_, err := c.post(crd, "Strict", `{"metadata":{"name":"created"},"spec":{"x":{"y":[1]}}}`)
	require.NoError(t, err)
	require.NoError(t, c.apply(crd, "applied", `{"metadata":{"name":"applied"},"spec":{"x":{"y":[1]}}}`))
}

// FieldValidation should create/apply a valid CR for CRD with validation schema
func TestFieldValidation_AcceptsAValidObject(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Cron", version("v1", validatedSchema)))
	const rest = `"spec":{"foo":"foo1","cronSpec":"* * * * */5","ports":[{"containerPort":8080}]}}`
	_, err := c.post(crd, "Strict", `{"metadata":{"name":"created"},`+rest)
	require.NoError(t, err)
	require.NoError(t, c.apply(crd, "applied", `{"metadata":{"name":"applied"},`+rest))
}

// FieldValidation should create/apply an invalid CR with extra properties for CRD with validation schema
func TestFieldValidation_RejectsExtraProperties(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Cron", version("v1", validatedSchema)))
	const doc = `{"metadata":{"name":"a"},"spec":{"foo":"foo1","extra":"no"}}`
	_, err := c.post(crd, "Strict", doc)
	require.ErrorContains(t, err, `strict decoding error: unknown field "spec.extra"`)
	require.ErrorContains(t, c.apply(crd, "a", doc), `.spec.extra: field not declared in schema`)
	warnings, err := c.post(crd, "Warn", doc)
	require.NoError(t, err)
	require.Equal(t, []string{`unknown field "spec.extra"`}, warnings)
}

// FieldValidation should detect duplicates in a CR when preserving unknown fields
func TestFieldValidation_RejectsDuplicates(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Free", version("v1", plainSchema)))
	const doc = `{"metadata":{"name":"a"},"spec":{"unknown":"a","foo":1,"foo":2,"unknown":"b"}}`
	_, err := c.post(crd, "Strict", doc)
	require.ErrorContains(t, err, `strict decoding error: duplicate field "spec.foo", duplicate field "spec.unknown"`)
	// The configuration is YAML, whose parser has another message.
	require.ErrorContains(t, c.apply(crd, "a", doc), `key "foo" already set in map`)
	warnings, err := c.post(crd, "Warn", doc)
	require.NoError(t, err)
	require.Equal(t, []string{`duplicate field "spec.foo"`, `duplicate field "spec.unknown"`}, warnings)
}

// FieldValidation should detect unknown metadata fields in both the root and embedded object of a CR
func TestFieldValidation_RejectsUnknownMetadata(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Embedding", version("v1", embeddingSchema)))
	const doc = `{"metadata":{"name":"a","unknownMeta":1},"spec":{"template":{"apiVersion":"v1","kind":"A",` +
		`"metadata":{"name":"b","unknownSubMeta":2},"spec":{"x":1}}}}`
	_, err := c.post(crd, "Strict", doc)
	require.ErrorContains(t, err, `unknown field "metadata.unknownMeta"`)
	require.ErrorContains(t, err, `unknown field "spec.template.metadata.unknownSubMeta"`)
	err = c.apply(crd, "a", doc)
	require.ErrorContains(t, err, `.metadata.unknownMeta: field not declared in schema`)
	require.ErrorContains(t, err, `.spec.template.metadata.unknownSubMeta: field not declared in schema`)
	warnings, err := c.post(crd, "Warn", doc)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{`unknown field "metadata.unknownMeta"`,
		`unknown field "spec.template.metadata.unknownSubMeta"`}, warnings)
}
