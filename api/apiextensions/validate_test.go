package apiextensions_test

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/apiextensions"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// sound is a valid definition. soundSchema replaces *schema.
const (
	sound = `
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - {name: v1, served: true, storage: true, schema: *schema}
status: {}
`
	soundSchema = `{openAPIV3Schema: {type: object, properties: ` +
		`{spec: {type: object, properties: {a: {type: string}}}, ` +
		`map: {type: object, additionalProperties: {type: string}}, ` +
		`metadata: {type: object, properties: {name: {type: string}}}}}}`
)

// pairs are texts and their replacements.
type pairs [][2]string

// refusal is a test case: changes of the sound definition, or of an old and a new one, or a schema, and the expected
// errors of kube-apiserver v1.37: "Reason path: detail". $ stands for spec.validation.openAPIV3Schema, and … for the
// rest of a detail.
type refusal struct {
	Name   string
	Change pairs
	Old    pairs
	Schema string
	Want   []string
}

//go:embed testdata/definitions.yaml
var definitions []byte

//go:embed testdata/schemas.yaml
var schemas []byte

//go:embed testdata/roots.yaml
var roots []byte

//go:embed testdata/updates.yaml
var updates []byte

func cases(t *testing.T, document []byte) []refusal {
	t.Helper()
	var list []refusal
	require.NoError(t, yaml.UnmarshalStrict(document, &list))
	return list
}

func kind() *api.Resource { return apiextensions.Kinds()[0] }

// changed returns the sound definition with some of its text replaced, before or after its schema is inserted.
func changed(t *testing.T, change pairs) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	text := sound
	var later pairs
	for _, c := range change {
		if !strings.Contains(text, c[0]) {
			later = append(later, c)
			continue
		}
		text = strings.Replace(text, c[0], c[1], 1)
	}
	text = strings.ReplaceAll(text, "*schema", soundSchema)
	for _, c := range later {
		require.Contains(t, text, c[0])
		text = strings.Replace(text, c[0], c[1], 1)
	}
	return kindtest.Decode(t, kind(), text).(*apiextensionsv1.CustomResourceDefinition)
}

// withSchema returns the sound definition with a schema in one line.
func withSchema(t *testing.T, root string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	return changed(t, pairs{{"*schema", "{openAPIV3Schema: " + root + "}"}})
}

// create validates a new definition.
func create(crd *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	r := kind()
	r.Status.Reset(crd)
	r.PrepareCreate(crd)
	return r.ValidateCreate(crd)
}

func requireRefusals(t *testing.T, want []string, errs field.ErrorList) {
	t.Helper()
	got := make([]string, len(errs))
	for i, e := range errs {
		got[i] = strings.TrimPrefix(string(e.Type), "FieldValue") + " " +
			strings.ReplaceAll(e.Field, "spec.validation.openAPIV3Schema", "$") + ": " +
			strings.ReplaceAll(e.Detail, "spec.validation.openAPIV3Schema", "$")
		for _, w := range want {
			if prefix, cut := strings.CutSuffix(w, "…"); cut && strings.HasPrefix(got[i], prefix) {
				got[i] = w
			}
		}
	}
	require.ElementsMatch(t, want, got)
}

func TestValidateCreate_RejectsDefinitions(t *testing.T) {
	t.Parallel()
	for _, c := range cases(t, definitions) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			requireRefusals(t, c.Want, create(changed(t, c.Change)))
		})
	}
}

// Each case is the schema of a property x.
func TestValidateCreate_RejectsSchemas(t *testing.T) {
	t.Parallel()
	for _, c := range cases(t, schemas) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			crd := withSchema(t, "{type: object, properties: {x: "+c.Schema+"}}")
			requireRefusals(t, c.Want, create(crd))
		})
	}
}

func TestValidateCreate_RejectsRootSchemas(t *testing.T) {
	t.Parallel()
	for _, c := range cases(t, roots) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			requireRefusals(t, c.Want, create(withSchema(t, c.Schema)))
		})
	}
}

func TestValidateUpdate_RejectsFaultsThatTheStoredDefinitionLacks(t *testing.T) {
	t.Parallel()
	for _, c := range cases(t, updates) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			r, old, crd := kind(), changed(t, c.Old), changed(t, c.Change)
			r.Status.Copy(crd, old)
			r.PrepareUpdate(crd, old)
			requireRefusals(t, c.Want, r.ValidateUpdate(crd, old))
		})
	}
}
