package openapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilproto "k8s.io/kube-openapi/pkg/util/proto"
	"k8s.io/kube-openapi/pkg/util/proto/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	kubectlopenapi "k8s.io/kubectl/pkg/util/openapi"

	"github.com/coxswain-dev/coxswain/api"
	apidocs "github.com/coxswain-dev/coxswain/api/openapi"
)

const cronTab, cronTabList = "com.example.stable.v1.CronTab", "com.example.stable.v1.CronTabList"

var stable = schema.GroupVersion{Group: "stable.example.com", Version: "v1"}

// fieldSchema returns the schema of a field below a definition, as JSON.
func fieldSchema(t *testing.T, s spec.Schema, fields ...string) string {
	t.Helper()
	for _, name := range fields {
		require.Contains(t, s.Properties, name)
		s = s.Properties[name]
	}
	data, err := json.Marshal(s)
	require.NoError(t, err)
	return string(data)
}

func TestV3_CustomSchemasMatchTheirDefinition(t *testing.T) {
	t.Parallel()
	kind := *v3(t, stable).Components.Schemas[cronTab]
	for field, want := range map[string]string{
		"cronSpec": `{"type":"string","description":"The times."}`,
		"replicas": `{"type":"integer","default":1,"minimum":0,"format":"int32"}`,
		"port":     `{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]}`,
		"surge":    `{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]}`,
		"hold":     `{"type":"object","nullable":true,"properties":{"a":{"type":"string"}}}`,
		"steps": `{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],
			"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string","default":"main"},
			"limits":{"type":"object","additionalProperties":{"type":"string","enum":["a","b"]}}}}}`,
		"any": `{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"b":{"type":"string"}}}`,
	} {
		require.JSONEq(t, want, fieldSchema(t, kind, "spec", field), field)
	}
	require.Equal(t, []any{map[string]any{"message": "none", "rule": "self.replicas > 0"}},
		kind.Properties["spec"].Extensions["x-kubernetes-validations"])
	require.JSONEq(t, `{"type":"object","x-kubernetes-map-type":"atomic","properties":{"replicas":{"type":"integer"}}}`,
		fieldSchema(t, kind, "status"))
	require.Equal(t, []string{"spec"}, kind.Required)
}

func TestV3_CustomKindsHaveKubernetesFields(t *testing.T) {
	t.Parallel()
	schemas := v3(t, stable).Components.Schemas
	const objectMeta = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	for _, s := range []spec.Schema{*schemas[cronTab], schemas[cronTab].Properties["spec"].Properties["object"]} {
		require.Equal(t, objectMeta, s.Properties["metadata"].AllOf[0].Ref.String(), "whatever the definition says")
		require.Contains(t, s.Properties["metadata"].Description, "Standard object's metadata.")
		require.Contains(t, strings.ToLower(s.Properties["kind"].Description), "kind is a string value")
	}
	require.Equal(t, []string{"kind", "apiVersion"}, schemas[cronTab].Properties["spec"].Properties["object"].Required)

	list := schemas[cronTabList]
	require.Equal(t, "CronTabList is a list of CronTab", list.Description)
	require.Equal(t, []string{"items"}, list.Required)
	require.Equal(t, "#/components/schemas/"+cronTab, list.Properties["items"].Items.Schema.Ref.String())
	for name, kind := range map[string]string{cronTab: "CronTab", cronTabList: "CronTabList"} {
		require.Equal(t, []any{map[string]any{"group": "stable.example.com", "version": "v1", "kind": kind}},
			schemas[name].Extensions["x-kubernetes-group-version-kind"])
		require.Equal(t, []any{map[string]any{"fieldPath": "spec.cronSpec"}},
			schemas[name].Extensions["x-kubernetes-selectable-fields"])
	}
}

func TestV3_CustomOperations(t *testing.T) {
	t.Parallel()
	paths := v3(t, stable).Paths.Paths
	const all = "/apis/stable.example.com/v1/crontabs"
	const item = "/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}"
	require.Len(t, paths, 5)
	require.Equal(t, "listStableExampleComV1CronTabForAllNamespaces", paths[all].Get.OperationId)
	require.Equal(t, "list objects of kind CronTab", paths[all].Get.Description)
	patch := paths[item].Patch
	require.Equal(t, []string{"stableExampleCom_v1"}, patch.Tags)
	var types []string
	for name := range patch.RequestBody.Content {
		types = append(types, name)
	}
	require.ElementsMatch(t, []string{"application/json-patch+json", "application/merge-patch+json",
		"application/apply-patch+yaml"}, types)
	require.Len(t, patch.Responses.StatusCodeResponses[200].Content, 2, "JSON and YAML")
	require.Contains(t, paths[item].Put.RequestBody.Content, "application/yaml")

	scale := paths[item+"/scale"].Get
	require.Equal(t, "readStableExampleComV1NamespacedCronTabScale", scale.OperationId)
	require.Equal(t, "#/components/schemas/io.k8s.api.autoscaling.v1.Scale",
		scale.Responses.StatusCodeResponses[200].Content["application/json"].Schema.Ref.String())
	require.Contains(t, paths, item+"/status")
}

func TestV3_NamesOfUnusualGroupsAndKinds(t *testing.T) {
	t.Parallel()
	kinds := define(strings.NewReplacer("stable.example.com", "9-lives.k8s.io", `"kind":"CronTab"`, `"kind":"My-ids"`,
		`"Namespaced"`, `"Cluster"`).Replace(cronTabsDoc))
	s := api.NewRegistry(kinds...).Snapshot()
	data, err := apidocs.NewDocuments(version).V3(s, "apis/9-lives.k8s.io/v1").JSON()
	require.NoError(t, err)
	require.Contains(t, string(data), `"operationId":"listLivesV1MyIds"`)
	require.Contains(t, string(data), `"operationId":"deleteLivesV1CollectionMyIds"`)
	require.Contains(t, string(data), `"tags":["Lives_v1"]`)
	require.Contains(t, string(data), `"description":"create My-ids"`, "a plural has no article")
	require.Contains(t, string(data), `"io.k8s.9-lives.v1.My-ids":{`)
}

// The fields that clients of version 2 read from schemas: k8s.io/kube-openapi/pkg/util/proto.
func TestV2_CustomSchemasHaveOnlyPartsThatClientsRead(t *testing.T) {
	t.Parallel()
	doc := parse[spec.Swagger](t, apidocs.NewDocuments(version).V2(registry().Snapshot()))
	kind := doc.Definitions[cronTab]
	for field, want := range map[string]string{
		"replicas": `{"type":"integer","minimum":0,"format":"int32"}`,
		"port":     `{"x-kubernetes-int-or-string":true}`,
		"surge":    `{"x-kubernetes-int-or-string":true}`,
		"hold":     `{}`,
		"any":      `{"x-kubernetes-preserve-unknown-fields":true}`,
		"anys":     `{"type":"array","items":{"x-kubernetes-preserve-unknown-fields":true}}`,
	} {
		require.JSONEq(t, want, fieldSchema(t, kind, "spec", field), field)
	}
	require.Equal(t, []string{"cronSpec"}, kind.Properties["spec"].Required, "hold may be null")
	require.NotContains(t, fieldSchema(t, kind, "spec", "object"), "oneOf")
	require.Contains(t, fieldSchema(t, kind, "metadata"),
		`"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"`)
}

func TestV2_KubectlValidatesCustomObjects(t *testing.T) {
	t.Parallel()
	resources, err := kubectlopenapi.NewOpenAPIData(v2(t))
	require.NoError(t, err)
	kind, ok := resources.LookupResource(stable.WithKind("CronTab")).(*utilproto.Kind)
	require.True(t, ok)
	object := func(spec string) any {
		var content map[string]any
		require.NoError(t, json.Unmarshal([]byte(`{"apiVersion":"stable.example.com/v1","kind":"CronTab",
			"metadata":{"name":"a"},"spec":`+spec+`}`), &content))
		return content
	}
	require.Empty(t, validation.ValidateModel(object(`{"cronSpec":"* * * * *","hold":null,"port":"http","surge":1,
		"any":{"a":[1]},"anys":[1,"a"],"steps":[{"name":"a"}],
		"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{}}}`), kind, "CronTab"))
	require.Len(t, validation.ValidateModel(object(`{"cronSpec":"* * * * *","steps":[{"nam":"a"}],"replicas":"1"}`),
		kind, "CronTab"), 3, "an unknown field, a missing one, and one of another type")
}

func TestDocuments_CustomKindsWithoutAUsableSchema(t *testing.T) {
	t.Parallel()
	for name, doc := range map[string]string{
		"none":             strings.Replace(cronTabsDoc, `"schema":{`, `"other":{`, 1),
		"not structural":   strings.Replace(cronTabsDoc, `"description":"The times."`, `"$ref":"#/x"`, 1),
		"malformed":        strings.Replace(cronTabsDoc, `"minimum":0`, `"minimum":"0"`, 1),
		"of another type":  strings.Replace(cronTabsDoc, `"type":"integer"`, `"type":"null"`, 1),
		"without a sample": strings.Replace(cronTabsDoc, `"openAPIV3Schema":{`, `"openAPIV3":{`, 1),
	} {
		s := api.NewRegistry(define(doc)...).Snapshot()
		docs := apidocs.NewDocuments(version)
		data, err := docs.V3(s, "apis/stable.example.com/v1").JSON()
		require.NoError(t, err, name)
		require.Contains(t, string(data), `"`+cronTab+`":{"type":"object","x-kubernetes-group-version-kind"`, name)
		_, err = docs.V2(s).Protobuf()
		require.NoError(t, err, name)
	}
}

func TestV2_CustomKindWithUnknownFieldsHasNoProperties(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{
		strings.Replace(cronTabsDoc, `"scope"`, `"preserveUnknownFields":true,"scope"`, 1),
		strings.Replace(cronTabsDoc, `"required":["spec"]`, `"x-kubernetes-preserve-unknown-fields":true`, 1),
	} {
		s := api.NewRegistry(define(doc)...).Snapshot()
		docs := apidocs.NewDocuments(version)
		require.Empty(t, parse[spec.Swagger](t, docs.V2(s)).Definitions[cronTab].Properties)
		data, err := docs.V3(s, "apis/stable.example.com/v1").JSON()
		require.NoError(t, err)
		require.Contains(t, string(data), "The times.")
	}
}

func TestDocuments_EachDefinitionChangesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	group := func(name, description string) *api.Resource {
		return define(strings.NewReplacer("stable.example.com", name, "The times.", description).Replace(cronTabsDoc))[0]
	}
	r := api.NewRegistry(group("a.example.com", "A"), group("b.example.com", "B"))
	docs := apidocs.NewDocuments(version)
	before := r.Snapshot()
	a, b, all := docs.V3(before, "apis/a.example.com/v1"), docs.V3(before, "apis/b.example.com/v1"), docs.V2(before)

	replace := func(with *api.Resource) *api.Snapshot {
		require.NoError(t, r.Replace([]*api.Resource{r.Snapshot().Kind(with.GVK())}, []*api.Resource{with}))
		return r.Snapshot()
	}
	same := replace(group("b.example.com", "B"))
	require.Same(t, a, docs.V3(same, "apis/a.example.com/v1"))
	require.Same(t, b, docs.V3(same, "apis/b.example.com/v1"), "it is the content that counts")
	require.Same(t, all, docs.V2(same))

	changed := replace(group("b.example.com", "C"))
	require.Same(t, a, docs.V3(changed, "apis/a.example.com/v1"))
	require.NotEqual(t, b.Hash, docs.V3(changed, "apis/b.example.com/v1").Hash)
	require.NotEqual(t, all.Hash, docs.V2(changed).Hash)
	data, err := docs.V3(changed, "apis/b.example.com/v1").JSON()
	require.NoError(t, err)
	require.Contains(t, string(data), `"description":"C"`)
}

// A group may have the same name as one of Kubernetes' own packages.
func TestV2_CustomKindsDoNotTakeNamesOfBuiltInOnes(t *testing.T) {
	t.Parallel()
	kinds := define(strings.NewReplacer("stable.example.com", "apps.api.k8s.io", `"kind":"CronTab"`,
		`"kind":"Deployment"`).Replace(cronTabsDoc))
	s := api.NewRegistry(append([]*api.Resource{deployments()}, kinds...)...).Snapshot()
	definitions := parse[spec.Swagger](t, apidocs.NewDocuments(version).V2(s)).Definitions
	require.Contains(t, fieldSchema(t, definitions["io.k8s.api.apps.v1.Deployment"], "spec"), "v1.DeploymentSpec")
	require.Contains(t, definitions["io.k8s.api.apps.v1.Deployment_v2"].Properties["spec"].Properties, "cronSpec")
}

func TestForm_SufficesForServerSideApply(t *testing.T) {
	t.Parallel()
	name, schemas := apidocs.Form(cronTabs())
	require.Equal(t, cronTab, name)
	require.NotContains(t, schemas, cronTabList)
	types, err := managedfields.NewTypeConverter(schemas, false)
	require.NoError(t, err)
	typed := func(doc string) *unstructured.Unstructured {
		var o unstructured.Unstructured
		require.NoError(t, o.UnmarshalJSON([]byte(doc)))
		return &o
	}
	value, err := types.ObjectToTyped(typed(`{"apiVersion":"stable.example.com/v1","kind":"CronTab",
		"metadata":{"name":"a","finalizers":["x"],"ownerReferences":[{"uid":"u","name":"n"}]},
		"spec":{"port":80,"any":{"a":1},"anys":[{"b":2}],"steps":[{"limits":{"c":"a"}}],
		"object":{"kind":"Pod","apiVersion":"v1","metadata":{"labels":{"d":"e"}}}},"status":{"replicas":1}}`))
	require.NoError(t, err)
	fields, err := value.ToFieldSet()
	require.NoError(t, err)
	all := fields.String()
	for _, path := range []string{`.metadata.finalizers[="x"]`, `.metadata.ownerReferences[uid="u"]`, ".spec.port",
		".spec.any.a", ".spec.anys", `.spec.steps[name="main"].limits.c`, ".spec.object.metadata.labels.d", ".status\n"} {
		require.Contains(t, all+"\n", path)
	}
	require.NotContains(t, all, ".status.replicas", "it is atomic")
}

// sized returns a definition with a schema of about that many bytes.
func sized(kind, bytes int) *api.Resource {
	var fields strings.Builder
	for i := 0; fields.Len() < bytes; i++ {
		fmt.Fprintf(&fields, `"f%d":{"type":"object","description":"A field in a definition that is as long as usual.",
			"properties":{"name":{"type":"string","minLength":1},"at":{"type":"array","items":{"type":"integer"}}}},`, i)
	}
	return define(strings.NewReplacer("crontab", fmt.Sprintf("crontab%d", kind), "CronTab", fmt.Sprintf("CronTab%d", kind),
		`"cronSpec":{`, fields.String()+`"cronSpec":{`).Replace(cronTabsDoc))[0]
}

func BenchmarkV3Custom(b *testing.B) {
	for name, resources := range map[string][]*api.Resource{
		"20kB": {sized(0, 20_000)}, "1MB": {sized(0, 1_000_000)},
	} {
		s := api.NewRegistry(resources...).Snapshot()
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := apidocs.NewDocuments(version).V3(s, "apis/stable.example.com/v1").JSON(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkForm(b *testing.B) {
	r := sized(0, 20_000)
	b.ReportAllocs()
	for b.Loop() {
		apidocs.Form(r)
	}
}

// BenchmarkV3IndexOfAThousand builds the index after one of a thousand definitions has changed.
func BenchmarkV3IndexOfAThousand(b *testing.B) {
	kinds := make([]*api.Resource, 1000)
	for i := range kinds {
		kinds[i] = sized(i, 20_000)
	}
	r := api.NewRegistry(kinds...)
	docs := apidocs.NewDocuments(version)
	docs.V3Index(r.Snapshot())
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		changed := []*api.Resource{sized(0, 20_000+i)}
		if err := r.Replace(kinds[:1], changed); err != nil {
			b.Fatal(err)
		}
		kinds = changed
		s := r.Snapshot()
		b.StartTimer()
		docs.V3Index(s)
	}
}
