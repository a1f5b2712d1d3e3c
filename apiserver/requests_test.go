package apiserver_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

func TestGzip_OnlyForLargeBodiesOnRequest(t *testing.T) {
	t.Parallel()
	s := start(t)
	large := configMap("large")
	large["data"] = m{"k": strings.Repeat("text ", 40<<10)}
	s.create(configMaps, large)
	s.create(configMaps, configMap("small"))
	plain := s.get(configMaps, "Accept-Encoding", "identity").ok(http.StatusOK)
	for path, want := range map[string]bool{configMaps + "/small": false, configMaps + "/large": true, configMaps: true,
		"/openapi/v2": true, "/apis": false} {
		for _, accept := range []string{"gzip", "deflate, gzip", "br", "gzip;q=0"} {
			a := s.get(path, "Accept-Encoding", accept).ok(http.StatusOK)
			compressed := want && strings.HasSuffix(accept, "gzip")
			require.Equal(t, compressed, a.header.Get("Content-Encoding") == "gzip", "%s %s", path, accept)
			if compressed {
				require.Contains(t, a.header.Values("Vary"), "Accept-Encoding")
				unpacked, err := gzip.NewReader(bytes.NewReader(a.body))
				require.NoError(t, err)
				body, err := io.ReadAll(unpacked)
				require.NoError(t, err)
				if path == configMaps {
					require.JSONEq(t, string(plain.body), string(body))
				}
			}
		}
	}
	stream := s.watch(configMaps+"?watch=1", "Accept-Encoding", "gzip")
	require.Empty(t, stream.res.Header.Get("Content-Encoding"))
	stream.expect("ADDED", "large")
}

func TestGzip_RequestBodiesAreNotDecompressed(t *testing.T) {
	t.Parallel()
	s := start(t)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(bytes.Repeat([]byte(" "), 100<<20)) // would be too large if it were decompressed
	require.NoError(t, err)
	require.NoError(t, w.Close())
	s.do(http.MethodPost, configMaps, packed.Bytes(), "Content-Encoding", "gzip").refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "")
}

func TestCBOR_RefusesWhatIsNotValid(t *testing.T) {
	t.Parallel()
	s := start(t)
	encode := func(value any) []byte {
		body, err := cbor.Marshal(value)
		require.NoError(t, err)
		return body
	}
	twice := append([]byte{0xa2}, append(append(encode("kind"), encode("ConfigMap")...),
		append(encode("kind"), encode("ConfigMap")...)...)...)
	for name, body := range map[string][]byte{
		"nothing": nil, "cut short": encode(configMap("a"))[:20], "a key twice": twice,
		"an endless array": {0x9f, 0x9f}, "a number": encode(1), "NaN": {0xf9, 0x7e, 0x00},
		"JSON":         []byte(`{"kind":"ConfigMap"}`),
		"deep nesting": append(bytes.Repeat([]byte{0x81}, 5000), 0x01),
	} {
		a := s.do(http.MethodPost, configMaps, body, "Content-Type", cborType)
		require.Equal(t, http.StatusBadRequest, a.code, "%s: %s", name, a.body)
	}
	unknown := configMap("a")
	unknown["spec"] = m{}
	s.do(http.MethodPost, configMaps+"?fieldValidation=Strict", encode(unknown), "Content-Type", cborType).
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, `unknown field "spec"`)
	created := s.do(http.MethodPost, configMaps, encode(unknown), "Content-Type", cborType).ok(http.StatusCreated)
	require.Equal(t, []string{`299 - "unknown field \"spec\""`}, created.header.Values("Warning"))
	missing := s.get(configMaps+"/none", "Accept", cborType).ok(http.StatusNotFound)
	require.Equal(t, cborType, missing.header.Get("Content-Type"))
	var status metav1.Status
	require.NoError(t, cbor.Unmarshal(missing.body, &status))
	require.Equal(t, metav1.StatusReasonNotFound, status.Reason)
}

func TestNegotiate_FollowsQualityAndParameters(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	for accept, want := range map[string]string{
		"application/json;q=0.9,application/cbor;q=1":                   cborType,
		"application/yaml;q=0.1, */*;q=0.2":                             "application/json",
		"application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5," + asYAML:  asYAML,
		protobuf + ";stream=watch":                                      protobuf,
		cborType + ";as=Table;g=meta.k8s.io;v=v1,application/json":      "application/json",
		cborType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1":       cborType,
		"application/yaml;as=PartialObjectMetadata;g=meta.k8s.io;v=v1":  asYAML,
		"application/json;stream=other,application/yaml":                asYAML,
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;": "application/json",
	} {
		require.Equal(t, want, s.get(configMaps+"/a", "Accept", accept).ok(http.StatusOK).header.Get("Content-Type"),
			accept)
	}
	s.get(configMaps, "Accept", asPartial).refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"you requested PartialObjectMetadata, but the requested object is a list")
	s.get(configMaps+"/a", "Accept", strings.Replace(asPartial, "Metadata;", "MetadataList;", 1)).
		refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "the requested object is not a list")
	s.get(configMaps+"?watch=1", "Accept", asYAML+";as=Table;g=meta.k8s.io;v=v1").refused(http.StatusNotAcceptable,
		metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: application/json;stream=watch, "+
			"application/vnd.kubernetes.protobuf;stream=watch, application/cbor-seq")
	require.True(t, bytes.HasPrefix(s.get(configMaps+"/a", "Accept", "application/json;pretty=1").body,
		[]byte("{\n  ")))
	s.get(configMaps+"/none", "Accept", asTable).refused(http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
	s.get(configMaps+"?includeObject=All", "Accept", asTable).refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "Unable to convert to Table as requested: includeObject: Invalid value")
}

func TestWatch_OldPaths(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.create(configMaps, configMap("b"))
	both := s.watch("/api/v1/watch/namespaces/default/configmaps")
	both.expect("ADDED", "a")
	both.expect("ADDED", "b")
	s.watch("/api/v1/watch/namespaces/default/configmaps/b").expect("ADDED", "b")
	s.watch("/api/v1/watch/namespaces/default").expect("ADDED", "default")
	s.watch("/api/v1/watch/configmaps?fieldSelector=metadata.name%3Db").expect("ADDED", "b")
	s.create(deployments, deployment("web", 1))
	s.watch("/apis/apps/v1/watch/deployments").expect("ADDED", "web")
	s.get("/api/v1/watch/namespaces/default/configmaps/b?fieldSelector=metadata.name%3Da").
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
			"fieldSelector metadata.name doesn't match requested name")
	s.get("/api/v1/watch/configmaps/b").ok(http.StatusNotFound)
	s.get("/api/v1/watch/nothings").ok(http.StatusNotFound)
}

func TestDeprecation_WarnsInEveryResponse(t *testing.T) {
	t.Parallel()
	s := start(t)
	const endpoints = "/api/v1/namespaces/default/endpoints"
	want := []string{`299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"`}
	require.Equal(t, want, s.get(endpoints).ok(http.StatusOK).header.Values("Warning"))
	require.Equal(t, want, s.create(endpoints, m{"metadata": m{"name": "a"}}).header.Values("Warning"))
	require.Equal(t, want, s.get(endpoints+"/none").ok(http.StatusNotFound).header.Values("Warning"))
	require.Equal(t, want, s.delete(endpoints+"/a", nil).ok(http.StatusOK).header.Values("Warning"))
	require.Empty(t, s.get(configMaps).header.Values("Warning"))
}

func TestDelete_OptionsInTheQuery(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	path := configMaps + "/a"
	bad := func(query string, code int, words string) {
		t.Helper()
		require.Contains(t, s.delete(path+"?"+query, nil).ok(code).at("message"), words)
	}
	bad("gracePeriodSeconds=soon", http.StatusBadRequest, "invalid syntax")
	bad("propagationPolicy=Sideways", http.StatusUnprocessableEntity, "propagationPolicy: Unsupported value")
	bad("orphanDependents=true&propagationPolicy=Orphan", http.StatusUnprocessableEntity, "cannot be both set")
	bad("dryRun=Some", http.StatusUnprocessableEntity, "dryRun: Unsupported value")
	s.delete(path+"?dryRun=All&colour=red", nil).ok(http.StatusOK)
	s.delete(configMaps+"?dryRun=All", nil).ok(http.StatusOK)
	s.get(path).ok(http.StatusOK)
	waiting := s.delete(path+"?propagationPolicy=Foreground", nil).ok(http.StatusOK)
	require.Equal(t, []any{"foregroundDeletion"}, waiting.at("metadata", "finalizers"))
	s.create(configMaps, configMap("b"))
	require.Equal(t, []any{"orphan"}, s.delete(configMaps+"/b?orphanDependents=true", nil).ok(http.StatusOK).at(
		"metadata", "finalizers"))
	s.create(configMaps, with(configMap("c"), "finalizers", []string{"x.io/y"}))
	s.delete(configMaps+"/c?orphanDependents=false", nil).ok(http.StatusAccepted)
}

func TestDeleteCollection_TakesAPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	for i := range 5 {
		s.create(configMaps, configMap(fmt.Sprintf("c%d", i)))
	}
	require.Equal(t, []string{"c0", "c1"}, s.delete(configMaps+"?limit=2", nil).ok(http.StatusOK).names())
	require.Equal(t, []string{"c2", "c3", "c4"}, s.get(configMaps).names())
	require.Equal(t, []string{"c2", "c3", "c4"},
		s.get(configMaps+"?limit=-1&unknown=parameter").ok(http.StatusOK).names())
}

func TestScale_AsATableAndAsMetadata(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(deployments, deployment("web", 4))
	table := s.get(deployments+"/web/scale", "Accept", asTable).ok(http.StatusOK)
	require.Equal(t, "Table", table.at("kind"))
	row := table.at("rows").([]any)[0].(m)
	require.Equal(t, []any{"web", int64(4), int64(0)}, row["cells"].([]any)[:3])
	require.Equal(t, "PartialObjectMetadata", row["object"].(m)["kind"])
	require.Equal(t, "web", s.get(deployments+"/web/scale", "Accept", asPartial).ok(http.StatusOK).at("metadata",
		"name"))
}

func TestPatch_StrictAboutThePatchItself(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	for kind, c := range map[string]struct{ patch, words string }{
		mergePatch:     {`{"data":{"a":"b","a":"c"}}`, `duplicate field "data.a"`},
		strategicPatch: {`{"data":{"a":"b","a":"c"}}`, `duplicate field "data.a"`},
		jsonPatch: {`[{"op":"add","path":"/data/a","value":"c","colour":"red"}]`,
			`json patch unknown field "[0].colour"`},
	} {
		s.patch(configMaps+"/a?fieldValidation=Strict", kind, c.patch).refused(http.StatusUnprocessableEntity,
			metav1.StatusReasonInvalid, "strict decoding error: "+c.words)
		require.Equal(t, []string{fmt.Sprintf("299 - %q", c.words)},
			s.patch(configMaps+"/a", kind, c.patch).ok(http.StatusOK).header.Values("Warning"), kind)
		require.Empty(t, s.patch(configMaps+"/a?fieldValidation=Ignore", kind,
			c.patch).ok(http.StatusOK).header.Values("Warning"))
	}
	s.patch(configMaps+"/a?fieldValidation=Lax", mergePatch, `{}`).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid, "PatchOptions.meta.k8s.io")
	s.patch(configMaps+"/a", mergePatch, `{"data":`).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"invalid JSON patch")
}

func TestMethods_HeadAndOptions(t *testing.T) {
	t.Parallel()
	s := start(t)
	head := s.do(http.MethodHead, "/readyz", nil).ok(http.StatusOK)
	require.Empty(t, head.body)
	require.Equal(t, http.StatusMethodNotAllowed, s.do(http.MethodHead, configMaps, nil).code)
	s.do(http.MethodOptions, configMaps, nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		"")
}

func TestDiscovery_ETagListsAreCompared(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"} {
		tag := s.get(path).ok(http.StatusOK).header.Get("ETag")
		require.NotEmpty(t, tag)
		s.get(path, "If-None-Match", `"other", W/`+tag).ok(http.StatusNotModified)
		s.get(path, "If-None-Match", `"other"`).ok(http.StatusOK)
	}
}
