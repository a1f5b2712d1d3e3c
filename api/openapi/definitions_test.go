package openapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	apidocs "github.com/coxswain-dev/coxswain/api/openapi"
)

func v3(t testing.TB, gv schema.GroupVersion) *spec3.OpenAPI {
	return parse[spec3.OpenAPI](t, apidocs.NewDocuments(version).V3(registry().Snapshot(), groupPath(gv)))
}

// parse decodes a document.
func parse[D any](t testing.TB, document *apidocs.Document) *D {
	data, err := document.JSON()
	require.NoError(t, err)
	doc := new(D)
	require.NoError(t, json.Unmarshal(data, doc))
	return doc
}

// groupPath returns the path of a group's document.
func groupPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

var (
	core = schema.GroupVersion{Version: "v1"}
	apps = schema.GroupVersion{Group: "apps", Version: "v1"}
)

// The expectations come from the document that Kubernetes publishes (api/openapi-spec).
func TestV3_ListsMergeAsInKubernetes(t *testing.T) {
	t.Parallel()
	schemas := v3(t, core).Components.Schemas
	for _, c := range []struct {
		definition, field, listType string
		keys                        []any
		mergeKey, strategy          string
	}{
		{"io.k8s.api.core.v1.PodSpec", "containers", "map", []any{"name"}, "name", "merge"},
		{"io.k8s.api.core.v1.PodSpec", "volumes", "map", []any{"name"}, "name", "merge,retainKeys"},
		{"io.k8s.api.core.v1.PodSpec", "tolerations", "atomic", nil, "", ""},
		{"io.k8s.api.core.v1.Container", "ports", "map", []any{"containerPort", "protocol"}, "containerPort", "merge"},
		{"io.k8s.api.core.v1.Container", "env", "map", []any{"name"}, "name", "merge"},
		{"io.k8s.api.core.v1.Container", "args", "atomic", nil, "", ""},
		{"io.k8s.api.core.v1.Container", "volumeMounts", "map", []any{"mountPath"}, "mountPath", "merge"},
		{"io.k8s.api.core.v1.ServiceSpec", "ports", "map", []any{"port", "protocol"}, "port", "merge"},
		{"io.k8s.api.core.v1.PodStatus", "conditions", "map", []any{"type"}, "type", "merge"},
		{"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", "set", nil, "", "merge"},
		{"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "ownerReferences", "map", []any{"uid"}, "uid", "merge"},
	} {
		field := schemas[c.definition].Properties[c.field]
		text := func(key string) string { s, _ := field.Extensions.GetString(key); return s }
		require.Equal(t, c.listType, text("x-kubernetes-list-type"), c)
		require.Equal(t, c.mergeKey, text("x-kubernetes-patch-merge-key"), c)
		require.Equal(t, c.strategy, text("x-kubernetes-patch-strategy"), c)
		keys, _ := field.Extensions["x-kubernetes-list-map-keys"].([]any)
		require.Equal(t, c.keys, keys, c)
	}
	for _, atomic := range []spec.Extensions{
		schemas["io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference"].Extensions,
		schemas["io.k8s.api.core.v1.ObjectReference"].Extensions,
		schemas["io.k8s.api.core.v1.ServiceSpec"].Properties["selector"].Extensions,
	} {
		mapType, _ := atomic.GetString("x-kubernetes-map-type")
		require.Equal(t, "atomic", mapType)
	}
}

func TestV3_RequiredAsInKubernetes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gv         schema.GroupVersion
		definition string
		required   []string
	}{
		{core, "io.k8s.api.core.v1.Pod", nil},
		{core, "io.k8s.api.core.v1.PodSpec", []string{"containers"}},
		{core, "io.k8s.api.core.v1.Container", []string{"name"}},
		{core, "io.k8s.api.core.v1.ContainerPort", []string{"containerPort"}},
		{core, "io.k8s.api.core.v1.ServicePort", []string{"port"}},
		{core, "io.k8s.api.core.v1.ConfigMapList", []string{"items"}},
		{core, "io.k8s.api.core.v1.Event", []string{"metadata", "involvedObject"}},
		{core, "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent", []string{"type", "object"}},
		{apps, "io.k8s.api.apps.v1.DeploymentSpec", []string{"selector", "template"}},
		{apps, "io.k8s.api.apps.v1.StatefulSetSpec", []string{"selector", "template"}},
	} {
		require.ElementsMatch(t, c.required, v3(t, c.gv).Components.Schemas[c.definition].Required, c.definition)
	}
}

func TestV3_SpecialTypesAsInKubernetes(t *testing.T) {
	t.Parallel()
	schemas := v3(t, apps).Components.Schemas
	for name, want := range map[string]string{
		"io.k8s.apimachinery.pkg.api.resource.Quantity":   `{"oneOf":[{"type":"string"},{"type":"number"}]}`,
		"io.k8s.apimachinery.pkg.util.intstr.IntOrString": `{"oneOf":[{"type":"integer"},{"type":"string"}],"format":"int-or-string"}`,
		"io.k8s.apimachinery.pkg.apis.meta.v1.Time":       `{"type":"string","format":"date-time"}`,
		"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1":   `{"type":"object"}`,
		"io.k8s.apimachinery.pkg.runtime.RawExtension":    `{"type":"object"}`,
	} {
		require.Contains(t, schemas, name)
		bare := *schemas[name]
		bare.Description = ""
		data, err := json.Marshal(bare)
		require.NoError(t, err)
		require.JSONEq(t, want, string(data), name)
	}
	replicas := schemas["io.k8s.api.apps.v1.DeploymentSpec"].Properties["replicas"]
	require.Equal(t, spec.StringOrArray{"integer"}, replicas.Type)
	require.Equal(t, "int32", replicas.Format)
}

func TestV3_DefaultsAsInKubernetes(t *testing.T) {
	t.Parallel()
	schemas := v3(t, core).Components.Schemas
	require.Equal(t, "TCP", schemas["io.k8s.api.core.v1.ContainerPort"].Properties["protocol"].Default)
	require.Equal(t, "", schemas["io.k8s.api.core.v1.Container"].Properties["name"].Default)
	require.Nil(t, schemas["io.k8s.api.core.v1.Container"].Properties["image"].Default)
	metadata := schemas["io.k8s.api.core.v1.Pod"].Properties["metadata"]
	require.Equal(t, map[string]any{}, metadata.Default)
	require.Empty(t, metadata.Ref.String(), "nothing may stand beside a $ref")
	require.Equal(t, "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
		metadata.AllOf[0].Ref.String())
	require.Nil(t, schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].Properties["creationTimestamp"].Default)
}

func TestV3_OperationsAsInKubernetes(t *testing.T) {
	t.Parallel()
	for gv, operations := range map[schema.GroupVersion]map[string][]string{
		core: {
			"/api/v1/":           {"getCoreV1APIResources"},
			"/api/v1/pods":       {"listCoreV1PodForAllNamespaces"},
			"/api/v1/namespaces": {"listCoreV1Namespace", "createCoreV1Namespace"},
			"/api/v1/namespaces/{name}/status": {
				"readCoreV1NamespaceStatus", "replaceCoreV1NamespaceStatus", "patchCoreV1NamespaceStatus"},
			"/api/v1/namespaces/{namespace}/pods/{name}/binding":  {"createCoreV1NamespacedPodBinding"},
			"/api/v1/namespaces/{namespace}/pods/{name}/eviction": {"createCoreV1NamespacedPodEviction"},
		},
		apps: {
			"/apis/apps/v1/namespaces/{namespace}/deployments": {
				"listAppsV1NamespacedDeployment", "createAppsV1NamespacedDeployment",
				"deleteAppsV1CollectionNamespacedDeployment"},
			"/apis/apps/v1/namespaces/{namespace}/deployments/{name}": {
				"readAppsV1NamespacedDeployment", "replaceAppsV1NamespacedDeployment",
				"patchAppsV1NamespacedDeployment", "deleteAppsV1NamespacedDeployment"},
			"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale": {
				"readAppsV1NamespacedDeploymentScale", "replaceAppsV1NamespacedDeploymentScale",
				"patchAppsV1NamespacedDeploymentScale"},
		},
	} {
		paths := v3(t, gv).Paths.Paths
		for path, ids := range operations {
			require.Contains(t, paths, path)
			var got []string
			for _, op := range []*spec3.Operation{paths[path].Get, paths[path].Post, paths[path].Put, paths[path].Patch,
				paths[path].Delete} {
				if op != nil {
					got = append(got, op.OperationId)
				}
			}
			require.ElementsMatch(t, ids, got, path)
		}
	}
}

func TestV3_ScaleIsAnotherGroupsKind(t *testing.T) {
	t.Parallel()
	op := v3(t, apps).Paths.Paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"].Patch
	require.Equal(t, map[string]any{"group": "autoscaling", "version": "v1", "kind": "Scale"},
		op.Extensions["x-kubernetes-group-version-kind"])
	require.Equal(t, "patch", op.Extensions["x-kubernetes-action"])
	require.Contains(t, op.RequestBody.Content, "application/apply-patch+yaml")
	var params []string
	for _, p := range op.Parameters {
		params = append(params, p.Name)
	}
	require.Equal(t, []string{"dryRun", "fieldManager", "fieldValidation", "force"}, params)
}

func TestDocuments_EveryReferenceResolves(t *testing.T) {
	t.Parallel()
	s := registry().Snapshot()
	docs := apidocs.NewDocuments(version)
	all := map[string]*apidocs.Document{"v2": docs.V2(s)}
	for _, path := range apidocs.V3Paths(s) {
		all[path] = docs.V3(s, path)
	}
	for name, doc := range all {
		data, err := doc.JSON()
		require.NoError(t, err)
		requireRefsResolve(t, name, data)
	}
}

// requireRefsResolve follows every $ref of a document.
func requireRefsResolve(t *testing.T, name string, data []byte) {
	var tree map[string]any
	require.NoError(t, json.Unmarshal(data, &tree))
	count := 0
	eachRef(tree, func(ref string) {
		count++
		value := any(tree)
		for step := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			object, ok := value.(map[string]any)
			require.True(t, ok && object[step] != nil, "%s: %s", name, ref)
			value = object[step]
		}
	})
	require.Positive(t, count)
}

func eachRef(node any, visit func(string)) {
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			eachRef(child, visit)
		}
	case map[string]any:
		if ref, ok := node["$ref"].(string); ok {
			visit(ref)
		}
		for _, child := range node {
			eachRef(child, visit)
		}
	}
}

func TestV3_ProtobufMatchesJSON(t *testing.T) {
	t.Parallel()
	s := registry().Snapshot()
	data, err := apidocs.NewDocuments(version).V3(s, "apis/apps/v1").Protobuf()
	require.NoError(t, err)
	var doc openapiv3.Document
	require.NoError(t, proto.Unmarshal(data, &doc))
	want := v3(t, apps)
	require.Len(t, doc.GetPaths().GetPath(), len(want.Paths.Paths))
	require.Len(t, doc.GetComponents().GetSchemas().GetAdditionalProperties(), len(want.Components.Schemas))
}

// As in Kubernetes, groups of custom kinds are not among them: there may be a thousand.
func TestV2_OneTypeUnderEveryGroup(t *testing.T) {
	t.Parallel()
	doc := parse[spec.Swagger](t, apidocs.NewDocuments(version).V2(registry().Snapshot()))
	require.Equal(t, []any{
		map[string]any{"group": "", "version": "v1", "kind": "DeleteOptions"},
		map[string]any{"group": "apps", "version": "v1", "kind": "DeleteOptions"},
	}, doc.Definitions["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"].Extensions["x-kubernetes-group-version-kind"])
}
