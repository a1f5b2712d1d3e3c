package openapi_test

import (
	"strings"
	"testing"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi3"
	utilproto "k8s.io/kube-openapi/pkg/util/proto"
	explain "k8s.io/kubectl/pkg/explain/v2"
	kubectlopenapi "k8s.io/kubectl/pkg/util/openapi"

	apidocs "github.com/coxswain-dev/coxswain/api/openapi"
)

var (
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	deployment  = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	customKinds = schema.GroupVersionResource{Group: "stable.example.com", Version: "v1", Resource: "crontabs"}
)

func TestV3_KubectlExplainsAKind(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, explain.PrintModelDescription(nil, &out, client(t, registry().Snapshot()), pods, false,
		0, "plaintext"))
	require.Contains(t, out.String(), "KIND:       Pod\nVERSION:    v1\n")
	require.Contains(t, out.String(), "Pod is a collection of containers that can run on a host.")
	require.Contains(t, out.String(), "  spec\t<PodSpec>\n")
	require.Contains(t, out.String(), "  metadata\t<ObjectMeta>\n")
}

func TestV3_KubectlExplainsAField(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := client(t, registry().Snapshot())
	require.NoError(t, explain.PrintModelDescription([]string{"spec", "containers", "ports"}, &out, c, pods, false,
		0, "plaintext"))
	require.Contains(t, out.String(), "FIELD: ports <[]ContainerPort>")
	require.Contains(t, out.String(), "containerPort\t<integer> -required-")
	require.Contains(t, out.String(), "hostPort\t<integer>\n")
}

func TestV3_KubectlExplainsRecursively(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, explain.PrintModelDescription(nil, &out, client(t, registry().Snapshot()), pods, true,
		0, "plaintext"))
	require.Contains(t, out.String(), "\n    containers\t<[]Container> -required-\n")
	require.Contains(t, out.String(), "\n      image\t<string>\n")
	require.Contains(t, out.String(), "\n      livenessProbe\t<Probe>\n")
}

func TestV3_KubectlExplainsACustomKind(t *testing.T) {
	t.Parallel()
	c := client(t, registry().Snapshot())
	explained := func(recursive bool, fields ...string) string {
		var out strings.Builder
		require.NoError(t, explain.PrintModelDescription(fields, &out, c, customKinds, recursive, 0, "plaintext"))
		return out.String()
	}
	kind := explained(false)
	require.Contains(t, kind, "GROUP:      stable.example.com\nKIND:       CronTab\n")
	require.Contains(t, kind, "CronTab runs a command at times.")
	require.Contains(t, kind, "  metadata\t<ObjectMeta>\n    Standard object's metadata.")
	require.Contains(t, kind, "  spec\t<Object> -required-\n    What to run.")
	require.Contains(t, explained(false, "spec", "cronSpec"), "FIELD: cronSpec <string>")
	require.Contains(t, explained(true), "\n    steps\t<[]Object>\n      limits\t<map[string]string>\n")
	require.Contains(t, explained(false, "spec", "object"), "  metadata\t<ObjectMeta>\n")
}

func TestV3_KubectlFindsFieldValidation(t *testing.T) {
	t.Parallel()
	s := registry().Snapshot()
	verifier := resource.NewQueryParamVerifierV3(fake.NewSimpleDynamicClient(scheme.Scheme), client(t, s),
		resource.QueryParamFieldValidation)
	for _, r := range s.Resources {
		require.NoError(t, verifier.HasSupport(r.GVK()), r.GVK())
	}
}

func TestV3_ClientGoReadsEveryGroup(t *testing.T) {
	t.Parallel()
	root := openapi3.NewRoot(client(t, registry().Snapshot()))
	gvs, err := root.GroupVersions()
	require.NoError(t, err)
	require.Len(t, gvs, 3)
	for _, gv := range gvs {
		doc, err := root.GVSpec(gv)
		require.NoError(t, err)
		require.NotEmpty(t, doc.Paths.Paths)
	}
}

// v2 decodes the version 2 document from its protobuf form, as kubectl and Helm do.
func v2(t testing.TB) *openapiv2.Document {
	data, err := apidocs.NewDocuments(version).V2(registry().Snapshot()).Protobuf()
	require.NoError(t, err)
	doc := &openapiv2.Document{}
	require.NoError(t, proto.Unmarshal(data, doc))
	return doc
}

type v2Getter struct{ doc *openapiv2.Document }

func (g v2Getter) OpenAPISchema() (*openapiv2.Document, error) { return g.doc, nil }

func TestV2_KubectlLooksUpKindsAndPatchKeys(t *testing.T) {
	t.Parallel()
	resources, err := kubectlopenapi.NewOpenAPIData(v2(t))
	require.NoError(t, err)
	kind, ok := resources.LookupResource(deployment).(*utilproto.Kind)
	require.True(t, ok)
	require.Equal(t, "io.k8s.api.apps.v1.Deployment", kind.Path.String())

	field := func(s utilproto.Schema, name string) utilproto.Schema {
		for {
			switch schema := s.(type) {
			case utilproto.Reference:
				s = schema.SubSchema()
				continue
			case *utilproto.Array:
				s = schema.SubType
				continue
			case *utilproto.Kind:
				require.Contains(t, schema.Fields, name)
				return schema.Fields[name]
			}
			require.FailNow(t, "no such field", name)
		}
	}
	containers := field(field(field(field(kind, "spec"), "template"), "spec"), "containers")
	require.Equal(t, "name", containers.GetExtensions()["x-kubernetes-patch-merge-key"])
	require.Equal(t, "merge", containers.GetExtensions()["x-kubernetes-patch-strategy"])
}

func TestV2_KubectlFindsFieldValidation(t *testing.T) {
	t.Parallel()
	verifier := resource.NewQueryParamVerifier(fake.NewSimpleDynamicClient(scheme.Scheme), v2Getter{v2(t)},
		resource.QueryParamFieldValidation)
	require.NoError(t, verifier.HasSupport(deployment))
	require.NoError(t, verifier.HasSupport(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}))
}
