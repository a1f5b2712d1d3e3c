package apiextensions_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// A client's definition may have up to 3 MiB. kube-apiserver takes long for these.
func TestValidateCreate_Ends(t *testing.T) {
	t.Parallel()
	const path = "spec.versions[0].schema.openAPIV3Schema"
	for name, c := range map[string]struct{ schema, want, path string }{
		"a deep schema": {nested(600), "nested deeper", path},
		"a schema of many branches": {"{type: object, anyOf: [" + strings.Repeat("{},", 110_000) + "{}]}",
			"more than 100000 schemas", path},
		"many rules": {"{type: object, x-kubernetes-validations: [" +
			strings.Repeat(`{rule: "true"},`, 1500) + `{rule: "true"}]}`, "more than 1000 x-kubernetes", path},
		"a long rule": {`{type: object, x-kubernetes-validations: [{rule: "` + strings.Repeat(" ", 256<<10) +
			`true"}]}`, "more than 262144 bytes", path},
		"large patterns": {"{type: object, properties: {" +
			properties(200, `{type: string, pattern: "(abcdefghij){500}"}`) + "}}", "take too much memory", ""},
		"a large pattern": {`{type: string, pattern: "(abcdefghij){1000}"}`, "is too large", ""},
		"defaults that take long": {`{type: object, properties: {a: {type: array, default: [` +
			strings.Repeat("1,", 1000) + `1], items: {type: integer, anyOf: [` +
			strings.Repeat("{minimum: 2},", 2000) + `{minimum: 1}]}}}}`, "takes too long to validate", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := create(withSchema(t, c.schema))
			require.NotEmpty(t, errs)
			require.Contains(t, errs[0].Detail, c.want)
			if c.path != "" {
				require.Equal(t, c.path, errs[0].Field)
			}
		})
	}
}

// An error contains values of the definition, some of them more than once.
func TestValidateCreate_RepeatsFewValuesInErrors(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]pairs{
		"many schemas": {{"storage: true", "storage: false"},
			{"*schema", "{openAPIV3Schema: {type: object, properties: {" + properties(5000, "{type: string}") + "}}}"}},
		"many keys": {{"*schema", `{openAPIV3Schema: {type: object, properties: {a: {type: array, ` +
			`x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [` + strings.Repeat("key,", 20_000) +
			`key], items: {type: object}}}}}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := create(changed(t, change))
			require.NotEmpty(t, errs)
			require.Less(t, len(errs.ToAggregate().Error()), 50_000)
		})
	}
}

func nested(depth int) string {
	return strings.Repeat("{type: object, properties: {a: ", depth) + "{type: string}" + strings.Repeat("}}", depth)
}

func properties(n int, schema string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("p%03d: %s", i, schema)
	}
	return strings.Join(list, ", ")
}

func TestValidateCreate_StopsAtTheErrorLimit(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{
		"not structural":   "{}",
		"unknown types":    "{type: text}",
		"wrong defaults":   "{type: string, default: 1}",
		"wrong rules":      "{type: string, x-kubernetes-validations: [{rule: oops}]}",
		"wrong extensions": "{type: string, x-kubernetes-list-type: bag}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			errs := create(withSchema(t, "{type: object, properties: {"+properties(1000, schema)+"}}"))
			require.GreaterOrEqual(t, len(errs), field.MaxErrors)
			require.Less(t, len(errs), field.MaxErrors+10)
		})
	}
}

// The error for a root with forbidden fields does not contain the schema, which can be long.
func TestValidateCreate_ErrorsAreShort(t *testing.T) {
	t.Parallel()
	schema := "{type: object, maxProperties: 3, properties: {" + properties(2000, "{type: string}") + "}}"
	crd := withSchema(t, schema)
	crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
	errs := create(crd)
	require.Len(t, errs, 1)
	require.Less(t, len(errs[0].Error()), 1000)
}

// many returns a definition with 10,000 schemas, some with rules and defaults.
func many(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "widgets.example.com"
	word := apiextensionsv1.JSONSchemaProps{Type: "string", Description: strings.Repeat("words ", 10),
		Pattern: "^[a-z]+$"}
	object := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
	for i := range 100 {
		object.Properties[fmt.Sprintf("field%d", i)] = word
	}
	root := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{}}
	for i := range 100 {
		below := object
		below.XValidations = apiextensionsv1.ValidationRules{{Rule: "has(self.field1)"}}
		below.Default = &apiextensionsv1.JSON{Raw: []byte(`{"field1":"a"}`)}
		root.Properties[fmt.Sprintf("object%d", i)] = below
	}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: "Cluster",
		Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &root}}}}
	kind().Default(crd)
	return crd
}

func BenchmarkValidateCreate(b *testing.B) {
	crd := many(b)
	require.Empty(b, kind().ValidateCreate(crd))
	for b.Loop() {
		kind().ValidateCreate(crd)
	}
}

func BenchmarkValidateUpdate(b *testing.B) {
	crd := many(b)
	old := crd.DeepCopy()
	require.Empty(b, kind().ValidateUpdate(crd, old))
	for b.Loop() {
		kind().ValidateUpdate(crd, old)
	}
}
