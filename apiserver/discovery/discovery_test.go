package discovery_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// server is an API server, and an administrator's client for it.
type server struct {
	t      *testing.T
	config *rest.Config
	http   *http.Client
}

func start(t *testing.T) *server {
	t.Helper()
	config := servertest.Start(t, apiserver.Options{}).Config
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(client.CloseIdleConnections)
	return &server{t, config, client}
}

// answer is a response that has been read.
type answer struct {
	t      *testing.T
	code   int
	header http.Header
	body   []byte
}

// get sends a GET. headers are pairs of a name and a value.
func (s *server) get(path string, headers ...string) *answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.config.Host+path, nil)
	require.NoError(s.t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := s.http.Do(r)
	require.NoError(s.t, err, path)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(s.t, err, path)
	return &answer{s.t, response.StatusCode, response.Header, body}
}

// ok requires a code.
func (a *answer) ok(code int) *answer {
	a.t.Helper()
	require.Equal(a.t, code, a.code, "%s", a.body)
	return a
}

// decode decodes a body in JSON.
func (a *answer) decode(into any) {
	a.t.Helper()
	require.NoError(a.t, json.Unmarshal(a.body, into), "%s", a.body)
}

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
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	s.get("/openapi/v3").ok(http.StatusOK).decode(&index)
	named := index.Paths["api/v1"].ServerRelativeURL
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

func TestDiscovery_NegotiatesTheMediaType(t *testing.T) {
	t.Parallel()
	s := start(t)
	for path, into := range map[string]interface {
		runtime.Object
		Unmarshal([]byte) error
	}{"/api": &metav1.APIVersions{}, "/apis": &metav1.APIGroupList{}, "/apis/apps": &metav1.APIGroup{},
		"/api/v1": &metav1.APIResourceList{}, "/apis/apps/v1": &metav1.APIResourceList{}} {
		plain := s.get(path).ok(http.StatusOK)
		require.Equal(t, "application/json", plain.header.Get("Content-Type"), path)
		asYAML := s.get(path, "Accept", "application/yaml").ok(http.StatusOK)
		require.Equal(t, "application/yaml", asYAML.header.Get("Content-Type"), path)
		doc, err := yaml.YAMLToJSON(asYAML.body)
		require.NoError(t, err, path)
		require.JSONEq(t, string(plain.body), string(doc), path)

		binary := s.get(path, "Accept", protobuf).ok(http.StatusOK)
		require.Equal(t, protobuf, binary.header.Get("Content-Type"), path)
		var wrapped runtime.Unknown
		require.NoError(t, wrapped.Unmarshal(binary.body[len("k8s\x00"):]), path)
		var meta metav1.TypeMeta
		plain.decode(&meta)
		require.Equal(t, meta.Kind, wrapped.Kind, path)
		require.NoError(t, into.Unmarshal(wrapped.Raw), path)

		var refusal metav1.Status
		s.get(path, "Accept", "text/plain").ok(http.StatusNotAcceptable).decode(&refusal)
		require.Equal(t, metav1.StatusReasonNotAcceptable, refusal.Reason)
		require.Contains(t, refusal.Message, "only the following media types are accepted: application/json")
		s.get(path, "Accept", "text/html, */*;q=0.8").ok(http.StatusOK)
	}
}
