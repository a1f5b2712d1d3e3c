package apiserver_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/yaml"
)

func TestNegotiate_AcceptHeaders(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("a"))
	for accept, want := range map[string]string{
		"":                                  "application/json",
		"*/*":                               "application/json",
		"application/*":                     "application/json",
		"application/json":                  "application/json",
		"application/json; charset=utf-8":   "application/json",
		"image/png, application/json":       "application/json",
		"application/yaml":                  asYAML,
		"application/yaml,application/json": asYAML,
		protobuf:                            protobuf,
		protobuf + ",application/json":      protobuf,
		protobuf + ";as=Table;v=v1;g=meta.k8s.io,application/json":      "application/json",
		"application/json;as=Table;v=v9;g=meta.k8s.io,application/json": "application/json",
		"text/html": "",
		"application/json;as=Table;v=v9;g=meta.k8s.io": "",
		"application/json;as=Chair;v=v1;g=meta.k8s.io": "",
		"nonsense": "",
		";;;,,,":   "",
	} {
		for _, path := range []string{pods, pods + "/a"} {
			answered := s.get(path, "Accept", accept)
			if want == "" {
				answered.refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
					"only the following media types are accepted: application/json, application/yaml, "+
						"application/vnd.kubernetes.protobuf, application/cbor")
				continue
			}
			require.Equal(t, want, answered.ok(http.StatusOK).header.Get("Content-Type"), accept)
		}
	}
}

func TestNegotiate_YAMLInAndOut(t *testing.T) {
	t.Parallel()
	s := start(t)
	created := s.do(http.MethodPost, configMaps,
		"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: \"yes\"\n",
		"Content-Type", "application/yaml", "Accept", "application/yaml").ok(http.StatusCreated)
	require.Equal(t, asYAML, created.header.Get("Content-Type"))
	require.Contains(t, string(created.body), "\nkind: ConfigMap\n")
	asJSON, err := yaml.YAMLToJSON(s.get(configMaps+"/a", "Accept", asYAML).ok(http.StatusOK).body)
	require.NoError(t, err)
	require.JSONEq(t, string(s.get(configMaps+"/a").body), string(asJSON))
	list := s.get(configMaps, "Accept", asYAML).ok(http.StatusOK)
	require.Contains(t, string(list.body), "kind: ConfigMapList")
	missing := s.get(configMaps+"/b", "Accept", asYAML).ok(http.StatusNotFound)
	require.Contains(t, string(missing.body), "reason: NotFound")
}

func TestNegotiate_PrettyForBrowsers(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	indented := func(a *answer) bool { return bytes.HasPrefix(a.body, []byte("{\n  \"")) }
	require.False(t, indented(s.get(configMaps+"/a")))
	require.True(t, indented(s.get(configMaps+"/a", "User-Agent", "curl/8.5.0")))
	require.True(t, indented(s.get(configMaps, "User-Agent", "curl/8.5.0")))
	require.True(t, indented(s.get(configMaps+"/b", "User-Agent", "curl/8.5.0")), "errors too")
	require.True(t, indented(s.get(configMaps+"/a?pretty=true")))
	require.False(t, indented(s.get(configMaps+"/a?pretty=false", "User-Agent", "curl/8.5.0")))
	require.JSONEq(t, string(s.get(configMaps+"/a").body), string(s.get(configMaps+"/a?pretty=1").body))
}

// kube-apiserver ends JSON with a newline, except if it is indented or not an API object.
func TestNegotiate_NewlineAtTheEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	large := configMap("large")
	large["data"] = m{"a": strings.Repeat("a", 300_000)}
	s.create(configMaps, large)
	for _, path := range []string{configMaps, configMaps + "/a", configMaps + "/large", configMaps + "/none", "/api",
		"/apis", "/apis/apps", "/api/v1"} {
		for _, accept := range []string{"application/json", asTable, asPartial,
			"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"} {
			for _, answered := range []*answer{s.get(path, "Accept", accept),
				s.get(path, "Accept", accept, "Accept-Encoding", "identity")} {
				require.True(t, bytes.HasSuffix(answered.body, []byte("}\n")), "%s %s", path, accept)
			}
			require.True(t, bytes.HasSuffix(s.get(path+"?pretty=1", "Accept", accept).body, []byte("\n}")),
				"%s %s", path, accept)
		}
		require.True(t, bytes.HasSuffix(s.get(path, "User-Agent", "curl/8").body, []byte("\n}")), path)
	}
	for _, path := range []string{"/", "/version", "/openapi/v2", "/openapi/v3"} {
		require.True(t, bytes.HasSuffix(s.get(path).ok(http.StatusOK).body, []byte("}")), path)
	}
}

func TestNegotiate_UnknownContentTypeIs415(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, method := range []string{http.MethodPost} {
		s.do(method, configMaps, `<a/>`, "Content-Type", "text/xml").
			refused(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
				`the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/cbor`)
	}
	s.create(configMaps, configMap("a"))
	s.do(http.MethodPut, configMaps+"/a", `<a/>`, "Content-Type", "text/xml").ok(http.StatusUnsupportedMediaType)
	s.patch(configMaps+"/a", "text/plain", `{}`).ok(http.StatusUnsupportedMediaType)
	s.do(http.MethodPost, configMaps, "k8s\x00\xff\xff", "Content-Type", protobuf).refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "protobuf")
	s.do(http.MethodPost, configMaps, `{"metadata":{"name":"b"}}`, "Content-Type",
		protobuf).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"does not appear to be a protobuf message")
}

func TestMetadataClient_SpeaksProtobuf(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(pods, pod("a"))
	client, err := metadata.NewForConfigAndClient(metadata.ConfigFor(s.config), s.http)
	require.NoError(t, err)
	resource := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace("default")
	one, err := resource.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "a", one.Name)
	list, err := resource.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	w, err := resource.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()
	require.Equal(t, "a", (<-w.ResultChan()).Object.(*metav1.PartialObjectMetadata).Name)
}
