//go:build e2e

package conformance

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// published returns the definition of a version's objects in the server's OpenAPI v2 document, or nil.
func (c *cluster) published(crd *apiextensionsv1.CustomResourceDefinition, version string) *spec.Schema {
	c.t.Helper()
	labels := strings.Split(crd.Spec.Group, ".")
	slices.Reverse(labels)
	name := strings.Join(append(labels, version, crd.Spec.Names.Kind), ".")
	var doc struct{ Definitions map[string]*spec.Schema }
	require.NoError(c.t, json.Unmarshal(c.get("/openapi/v2", "application/json"), &doc))
	return doc.Definitions[name]
}

// publishes waits until the properties of a version are published as in its schema.
func (c *cluster) publishes(crd *apiextensionsv1.CustomResourceDefinition, version, openAPISchema string) {
	c.t.Helper()
	var want spec.Schema
	require.NoError(c.t, json.Unmarshal([]byte(openAPISchema), &want))
	var found *spec.Schema
	require.Eventually(c.t, func() bool {
		found = c.published(crd, version)
		return found != nil
	}, patience, tick, "%s %s", crd.Name, version)
	require.Equal(c.t, want.Description, found.Description)
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		require.Contains(c.t, found.Properties, name)
		delete(found.Properties, name)
	}
	expected, err := json.Marshal(want.Properties)
	require.NoError(c.t, err)
	have, err := json.Marshal(found.Properties)
	require.NoError(c.t, err)
	require.JSONEq(c.t, string(expected), string(have))
}

// withdraws waits until a version is no longer published.
func (c *cluster) withdraws(crd *apiextensionsv1.CustomResourceDefinition, version string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.published(crd, version) == nil }, patience, tick, "%s %s", crd.Name,
		version)
}

// takes requires that kubectl can create an object, and apply it, both with validation.
func (c *cluster) takes(crd *apiextensionsv1.CustomResourceDefinition, doc string) {
	c.t.Helper()
	for _, verb := range []string{"create", "apply"} {
		_, err := c.kubectl(header(crd, doc), verb, "-f", "-")
		require.NoError(c.t, err)
		_, err = c.kubectl(header(crd, doc), "delete", "-f", "-")
		require.NoError(c.t, err)
	}
}

// refuses requires that kubectl's validation rejects the same.
func (c *cluster) refuses(crd *apiextensionsv1.CustomResourceDefinition, doc, why string) {
	c.t.Helper()
	for _, verb := range []string{"create", "apply"} {
		_, err := c.kubectl(header(crd, doc), verb, "-f", "-")
		require.ErrorContains(c.t, err, why, verb)
	}
}

// explains requires that kubectl's explanation of a field, or of the objects, contains these parts in this order.
func (c *cluster) explains(crd *apiextensionsv1.CustomResourceDefinition, field string, parts ...string) {
	c.t.Helper()
	out, err := c.kubectl("", "explain", crd.Spec.Names.Plural+field, "--api-version="+crd.Spec.Group+"/v1")
	require.NoError(c.t, err)
	require.Regexp(c.t, "(?s)"+strings.Join(parts, ".*"), out)
}

// CustomResourcePublishOpenAPI works for CRD with validation schema
func TestPublishOpenAPI_WithASchema(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Foo", version("v1", fooSchema)))
	c.publishes(crd, "v1", fooSchema)
	const name = `{"metadata":{"name":"test-foo"},`
	c.takes(crd, name+`"spec":{"bars":[{"name":"test-bar"}]}}`)
	c.refuses(crd, name+`"spec":{"bars":[{"name":"test-bar","feeling":"Odd"}]}}`,
		`spec.bars[0].feeling: Unsupported value: "Odd": supported values: "Great", "Down"`)
	c.refuses(crd, name+`"spec":{"foo":true}}`, `unknown field "spec.foo"`)
	c.refuses(crd, name+`"spec":{"bars":[{"age":"10"}]}}`, `spec.bars[0].name: Required value`)

	c.explains(crd, "", "DESCRIPTION:", "Foo CRD for testing", "FIELDS:", "apiVersion", "<string>",
		"APIVersion defines", "spec", "<Object>", "Specification of Foo")
	c.explains(crd, ".metadata", "DESCRIPTION:", "Standard object's metadata", "FIELDS:", "creationTimestamp",
		"<string>", "CreationTimestamp is a timestamp")
	c.explains(crd, ".spec", "DESCRIPTION:", "Specification of Foo", "FIELDS:", "bars", `<\[\]Object>`,
		"List of Bars and their specs")
	c.explains(crd, ".spec.bars", "FIELD: bars", `<\[\]Object>`, "DESCRIPTION:", "List of Bars and their specs",
		"FIELDS:", "bazs", `<\[\]string>`, "List of Bazs", "name", "<string>", "Name of Bar")
	_, err := c.kubectl("", "explain", crd.Spec.Names.Plural+".spec.bars2", "--api-version="+crd.Spec.Group+"/v1")
	require.ErrorContains(t, err, `field "bars2" does not exist`)
}

// CustomResourcePublishOpenAPI works for CRD without validation schema
func TestPublishOpenAPI_WithoutASchema(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Empty", version("v1", plainSchema)))
	require.Eventually(t, func() bool { return c.published(crd, "v1") != nil }, patience, tick)
	require.Empty(t, c.published(crd, "v1").Properties, "clients would reject all other properties")
	c.takes(crd, `{"metadata":{"name":"test-cr"},"a":{"b":[{"c":"d"}]}}`)
	c.explains(crd, "", "DESCRIPTION:", "<empty>")
}

// CustomResourcePublishOpenAPI works for CRD preserving unknown fields at the schema root
func TestPublishOpenAPI_PreservesUnknownFieldsAtTheRoot(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("UnknownAtRoot", version("v1", `{"type":"object","x-kubernetes-preserve-unknown-fields":true,
		"description":"preserve-unknown-properties at root for testing","properties":{
		"spec":{"type":"object","description":"Specification of Waldo","properties":{"dummy":{"type":"string"}}}}}`)))
	c.takes(crd, `{"metadata":{"name":"test-cr"},"a":{"b":[{"c":"d"}]}}`)
	c.explains(crd, "", "KIND:", "UnknownAtRoot")
}

// CustomResourcePublishOpenAPI works for CRD preserving unknown fields in an embedded object
func TestPublishOpenAPI_PreservesUnknownFieldsInAnObject(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("UnknownInNested", version("v1", `{"type":"object",
		"description":"preserve-unknown-properties in nested field for testing","properties":{
		"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"description":"Specification of Waldo",
			"properties":{"dummy":{"type":"string","description":"Dummy property"}}},
		"status":{"type":"object","description":"Status of Waldo"}}}`)))
	c.takes(crd, `{"metadata":{"name":"test-cr"},"spec":{"a":null,"b":[{"c":"d"}]}}`)
	c.explains(crd, "", "DESCRIPTION:", "preserve-unknown-properties in nested field for testing")
	c.explains(crd, ".spec", "DESCRIPTION:", "Specification of Waldo", "FIELDS:", "dummy", "<string>")
	found := c.published(crd, "v1")
	require.NotNil(t, found)
	preserves, _ := found.Properties["spec"].Extensions.GetBool("x-kubernetes-preserve-unknown-fields")
	require.True(t, preserves)
}

// CustomResourcePublishOpenAPI works for multiple CRDs of different groups
func TestPublishOpenAPI_OfDifferentGroups(t *testing.T) {
	t.Parallel()
	c := connect(t)
	foo := c.define(definition("Foo", version("v1", fooSchema)))
	waldo := c.define(definition("Waldo", version("v1beta1", waldoSchema)))
	require.NotEqual(t, foo.Spec.Group, waldo.Spec.Group)
	c.publishes(foo, "v1", fooSchema)
	c.publishes(waldo, "v1beta1", waldoSchema)
}

// CustomResourcePublishOpenAPI works for multiple CRDs of same group but different versions
func TestPublishOpenAPI_OfDifferentVersions(t *testing.T) {
	t.Parallel()
	c := connect(t)
	both := c.define(definition("Multi", version("v2", fooSchema), version("v3", fooSchema)))
	c.publishes(both, "v2", fooSchema)
	c.publishes(both, "v3", fooSchema)

	foo := c.define(definition("Foo", version("v4", fooSchema)))
	waldo := inGroup(definition("Waldo", version("v5", waldoSchema)), foo.Spec.Group)
	waldo = c.define(waldo)
	c.publishes(foo, "v4", fooSchema)
	c.publishes(waldo, "v5", waldoSchema)
}

// CustomResourcePublishOpenAPI works for multiple CRDs of same group and version but different kinds
func TestPublishOpenAPI_OfDifferentKinds(t *testing.T) {
	t.Parallel()
	c := connect(t)
	foo := c.define(definition("Foo", version("v6", fooSchema)))
	waldo := c.define(inGroup(definition("Waldo", version("v6", waldoSchema)), foo.Spec.Group))
	c.publishes(foo, "v6", fooSchema)
	c.publishes(waldo, "v6", waldoSchema)
}

// inGroup moves a definition into a group.
func inGroup(crd *apiextensionsv1.CustomResourceDefinition, group string) *apiextensionsv1.CustomResourceDefinition {
	crd.Spec.Group, crd.Name = group, crd.Spec.Names.Plural+"."+group
	return crd
}

// CustomResourcePublishOpenAPI updates the published spec when one version gets renamed
func TestPublishOpenAPI_FollowsARename(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Multi", version("v2", fooSchema), version("v3", fooSchema)))
	c.publishes(crd, "v3", fooSchema)
	c.patchVersions(crd, `[{"op":"test","path":"/spec/versions/1/name","value":"v3"},
		{"op":"replace","path":"/spec/versions/1/name","value":"v4"}]`)
	c.publishes(crd, "v4", fooSchema)
	c.withdraws(crd, "v3")
	c.publishes(crd, "v2", fooSchema)
}

// CustomResourcePublishOpenAPI removes definition from spec when one version gets changed to not be served
func TestPublishOpenAPI_WithdrawsAVersionThatIsNotServed(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Multi", version("v5", fooSchema), version("v6alpha1", fooSchema)))
	c.publishes(crd, "v6alpha1", fooSchema)
	c.patchVersions(crd, `[{"op":"test","path":"/spec/versions/1/name","value":"v6alpha1"},
		{"op":"replace","path":"/spec/versions/1/served","value":false}]`)
	c.withdraws(crd, "v6alpha1")
	c.publishes(crd, "v5", fooSchema)
	_, err := c.objects(crd, "v6alpha1").List(c.ctx, metav1.ListOptions{})
	require.ErrorContains(t, err, "the server could not find the requested resource")
}

func (c *cluster) patchVersions(crd *apiextensionsv1.CustomResourceDefinition, patch string) {
	c.t.Helper()
	_, err := c.crds().Patch(c.ctx, crd.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(c.t, err)
}
