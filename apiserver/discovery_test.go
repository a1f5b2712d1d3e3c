package apiserver_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

func TestDiscovery_AggregatedAndLegacyAgree(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, legacy := range map[string]bool{"aggregated": false, "legacy": true} {
		t.Run(name, func(t *testing.T) {
			client, err := discovery.NewDiscoveryClientForConfigAndClient(s.config, s.http)
			require.NoError(t, err)
			client.UseLegacyDiscovery = legacy
			groups, lists, err := client.ServerGroupsAndResources()
			require.NoError(t, err)
			require.NotEmpty(t, groups)
			found := map[schema.GroupVersionResource][]string{}
			for _, list := range lists {
				gv, err := schema.ParseGroupVersion(list.GroupVersion)
				require.NoError(t, err)
				for _, r := range list.APIResources {
					found[gv.WithResource(r.Name)] = r.Verbs
				}
			}
			for _, res := range builtin.Kinds() {
				verbs := found[res.GroupVersion().WithResource(res.Plural)]
				if res.Virtual {
					require.ElementsMatch(t, []string{"get", "list"}, verbs, res.Kind)
					continue
				}
				if res.CreateOnly {
					require.Equal(t, []string{"create"}, verbs, res.Kind)
					continue
				}
				require.Subset(t, verbs, []string{"get", "list", "watch", "create", "update", "patch", "delete"},
					res.Kind)
				for _, sub := range res.AllSubresources() {
					require.NotEmpty(t, found[res.GroupVersion().WithResource(res.Plural+"/"+sub.Name)], "%s/%s",
						res.Kind, sub.Name)
				}
			}
			preferred, err := client.ServerPreferredResources()
			require.NoError(t, err)
			require.NotEmpty(t, preferred)
		})
	}
}

func TestDiscovery_ETagMakesA304(t *testing.T) {
	t.Parallel()
	s := start(t)
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for path, accept := range map[string]string{
		"/api": aggregated, "/apis": aggregated, "/openapi/v2": "application/json", "/openapi/v3": "application/json",
		"/openapi/v3/api/v1": "application/json",
	} {
		first := s.get(path, "Accept", accept).ok(http.StatusOK)
		etag := first.header.Get("ETag")
		require.NotEmpty(t, etag, path)
		again := s.get(path, "Accept", accept, "If-None-Match", etag)
		require.Equal(t, http.StatusNotModified, again.code, path)
		require.Empty(t, again.body)
		s.get(path, "Accept", accept, "If-None-Match", `"OLD"`).ok(http.StatusOK)
	}
}

func TestOpenAPI_HashNamesTheContent(t *testing.T) {
	t.Parallel()
	s := start(t)
	index := s.get("/openapi/v3").ok(http.StatusOK)
	named, _ := index.at("paths", "api/v1", "serverRelativeURL").(string)
	require.True(t, strings.HasPrefix(named, "/openapi/v3/api/v1?hash="), named)
	require.NotEmpty(t, s.get(named).ok(http.StatusOK).header.Get("Expires"))
	moved := s.get("/openapi/v3/api/v1?hash=OLD").ok(http.StatusMovedPermanently)
	require.Equal(t, named, moved.header.Get("Location"))
	s.get("/openapi/v3/api/v9").ok(http.StatusNotFound)
	for path, accept := range map[string]string{
		"/openapi/v2":        "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
		"/openapi/v3/api/v1": "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
	} {
		require.Contains(t, s.get(path, "Accept", accept).ok(http.StatusOK).header.Get("Content-Type"), "protobuf")
	}
}

func TestDiscovery_RootAndVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	require.Subset(t, s.get("/").ok(http.StatusOK).at("paths"), []any{"/api", "/api/v1", "/apis", "/apis/apps",
		"/apis/apps/v1", "/version"})
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.config, s.http)
	require.NoError(t, err)
	v, err := client.ServerVersion()
	require.NoError(t, err)
	require.Equal(t, kubeversion.MajorMinor, v.Major+"."+v.Minor)
	for _, path := range []string{"/livez?verbose", "/readyz?verbose", "/healthz?verbose"} {
		text := string(s.get(path).ok(http.StatusOK).body)
		require.Contains(t, text, "[+]ping ok\n")
		require.Contains(t, text, "check passed\n")
	}
	s.get("/readyz/nothing").ok(http.StatusNotFound)
}

func TestDiscovery_SpeaksWhatTheClientAccepts(t *testing.T) {
	t.Parallel()
	s := start(t)
	for path, into := range map[string]interface {
		runtime.Object
		Unmarshal([]byte) error
	}{"/api": &metav1.APIVersions{}, "/apis": &metav1.APIGroupList{}, "/apis/apps": &metav1.APIGroup{},
		"/api/v1": &metav1.APIResourceList{}, "/apis/apps/v1": &metav1.APIResourceList{}} {
		plain := s.get(path).ok(http.StatusOK)
		require.Equal(t, "application/json", plain.header.Get("Content-Type"), path)
		asYAML := s.get(path, "Accept", asYAML).ok(http.StatusOK)
		require.Equal(t, "application/yaml", asYAML.header.Get("Content-Type"), path)
		doc, err := yaml.YAMLToJSON(asYAML.body)
		require.NoError(t, err, path)
		require.JSONEq(t, string(plain.body), string(doc), path)

		binary := s.get(path, "Accept", protobuf).ok(http.StatusOK)
		require.Equal(t, protobuf, binary.header.Get("Content-Type"), path)
		var wrapped runtime.Unknown
		require.NoError(t, wrapped.Unmarshal(binary.body[len("k8s\x00"):]), path)
		require.Equal(t, plain.at("kind"), wrapped.Kind, path)
		require.NoError(t, into.Unmarshal(wrapped.Raw), path)

		s.get(path, "Accept", "text/plain").refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"only the following media types are accepted: application/json")
		s.get(path, "Accept", "text/html, */*;q=0.8").ok(http.StatusOK)
	}
}

func TestDiscovery_ListsTheStatusOfCustomResourcesFirst(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	var list metav1.APIResourceList
	require.NoError(t, json.Unmarshal(s.get("/apis/example.org/v2").ok(http.StatusOK).body, &list))
	var names []string
	for _, r := range list.APIResources {
		names = append(names, r.Name)
	}
	require.Equal(t, []string{"valves", "valves/status", "valves/scale"}, names)
}
