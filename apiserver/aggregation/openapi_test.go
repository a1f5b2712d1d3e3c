package aggregation_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	clientdiscovery "k8s.io/client-go/discovery"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
)

const wardleSpec = `{"swagger":"2.0","info":{"title":"wardle","version":"v1"},
"paths":{"/apis/wardle.example.com/v1/":{"get":{"operationId":"list","produces":["application/json"],"responses":{"200":{"description":"OK",
   "schema":{"$ref":"#/definitions/io.example.Flunder"}}}},"parameters":[{"$ref":"#/parameters/pretty-1"}]},
 "/api/v1/pods":{"get":{"operationId":"stolen","responses":{"200":{"description":"stolen"}}}},
 "/version":{"get":{"operationId":"other","responses":{"200":{"description":"x",
   "schema":{"$ref":"#/definitions/io.example.Unused"}}}}}},
"definitions":{"io.example.Flunder":{"type":"object","properties":{
   "metadata":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
   "time":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"}}},
 "io.example.Unused":{"type":"object"},
 "io.k8s.apimachinery.pkg.apis.meta.v1.Time":TIME,
 "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta":{"type":"object","description":"another one"}},
"parameters":{"pretty-1":{"name":"pretty","in":"query","type":"string"}}}`

type swaggerDoc struct {
	Paths       map[string]json.RawMessage `json:"paths"`
	Definitions map[string]json.RawMessage `json:"definitions"`
	Parameters  map[string]json.RawMessage `json:"parameters"`
}

func (c *cluster) spec2() swaggerDoc {
	c.t.Helper()
	got := c.get("/openapi/v2")
	require.Equal(c.t, http.StatusOK, got.code)
	var doc swaggerDoc
	require.NoError(c.t, json.Unmarshal([]byte(got.body), &doc))
	return doc
}

func TestOpenAPIV2_IsMerged(t *testing.T) {
	t.Parallel()
	own := start(t, apiserver.Options{}).spec2()
	const meta = "io.k8s.apimachinery.pkg.apis.meta.v1."
	text := strings.Replace(wardleSpec, "TIME", string(own.Definitions[meta+"Time"]), 1)
	c, _ := extendedBy(t, apiserver.Options{}, describes(map[string]string{"/apis/wardle.example.com/v1": "{}",
		"/openapi/v2": text}, http.Header{"Etag": {`"spec"`}}))
	doc := c.spec2()
	require.Contains(t, string(doc.Paths["/apis/wardle.example.com/v1/"]), `"#/definitions/io.example.Flunder"`)
	require.NotContains(t, string(doc.Paths["/api/v1/pods"]), "stolen")
	require.Equal(t, own.Paths["/version"], doc.Paths["/version"], "is this server's own")
	require.NotContains(t, doc.Definitions, "io.example.Unused")
	require.Contains(t, doc.Parameters, "pretty-1")
	require.NotContains(t, doc.Definitions, meta+"Time_v2", "the same")
	require.JSONEq(t, string(own.Definitions[meta+"ObjectMeta"]), string(doc.Definitions[meta+"ObjectMeta"]))
	require.Contains(t, string(doc.Definitions[meta+"ObjectMeta_v2"]), "another one")
	require.Contains(t, string(doc.Definitions["io.example.Flunder"]), meta+"ObjectMeta_v2")
	for path := range own.Paths {
		require.Contains(t, doc.Paths, path)
	}
	packed := c.get("/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	require.NoError(t, proto.Unmarshal([]byte(packed.body), &openapiv2.Document{}))
	require.Equal(t, http.StatusNotModified, c.get("/openapi/v2", "If-None-Match", packed.header.Get("Etag")).code)
}

func TestOpenAPIV2_SurvivesBrokenServers(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"garbage":        "{",
		"unsound paths":  `{"paths":{"/apis/wardle.example.com/v1/":7}}`,
		"unsound schema": strings.Replace(wardleSpec, `"type":"object","properties"`, `"type":7,"properties"`, 1),
		"too large":      `"` + strings.Repeat("x", 9<<20) + `"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := extendedBy(t, apiserver.Options{}, describes(map[string]string{"/apis/wardle.example.com/v1": "{}",
				"/openapi/v2": text}, nil))
			doc := c.spec2()
			require.NotContains(t, doc.Paths, "/apis/wardle.example.com/v1/")
			require.Contains(t, doc.Paths, "/api/v1/namespaces/{namespace}/pods")
			client := clientdiscovery.NewDiscoveryClientForConfigOrDie(c.Config)
			_, err := client.OpenAPISchema()
			require.NoError(t, err)
		})
	}
}

func (c *cluster) index() map[string]string {
	c.t.Helper()
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	require.NoError(c.t, json.Unmarshal([]byte(c.get("/openapi/v3").body), &index))
	paths := map[string]string{}
	for name, entry := range index.Paths {
		paths[name] = entry.ServerRelativeURL
	}
	return paths
}

func TestOpenAPIV3_IsListedAndPassedOn(t *testing.T) {
	t.Parallel()
	const document = `{"openapi":"3.0.0","info":{"title":"wardle","version":"v1"},"paths":{}}`
	answer := describes(map[string]string{"/apis/wardle.example.com/v1": "{}",
		"/openapi/v3": `{"paths":{"apis/wardle.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1?hash=AB"},
			"api/v1":{"serverRelativeURL":"/stolen"},"version":{"serverRelativeURL":"/stolen"}}}`,
		"/openapi/v3/apis/wardle.example.com/v1": document}, nil)
	c, e := extendedBy(t, apiserver.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("hash") == "OLD" {
			http.Redirect(w, r, r.URL.Path+"?hash=AB", http.StatusMovedPermanently)
			return
		}
		answer(w, r)
	})
	index := c.index()
	const target = "/openapi/v3/apis/wardle.example.com/v1?hash=AB"
	require.Equal(t, target, index["apis/wardle.example.com/v1"])
	require.Contains(t, index["api/v1"], "/openapi/v3/api/v1?hash=")
	require.NotContains(t, index, "version")
	e.requests()
	require.JSONEq(t, document, c.get(target).body)
	require.Equal(t, "admin", e.requests()[0].Header.Get("X-Remote-User"))
	moved := c.get("/openapi/v3/apis/wardle.example.com/v1?hash=OLD")
	require.Equal(t, http.StatusMovedPermanently, moved.code)
	require.Equal(t, target, moved.header.Get("Location"))
}

func TestOpenAPIV3_OfOlderServersIsConverted(t *testing.T) {
	t.Parallel()
	text := strings.Replace(wardleSpec, "TIME", `{"type":"string"}`, 1)
	c, _ := extendedBy(t, apiserver.Options{}, describes(map[string]string{"/apis/wardle.example.com/v1": "{}",
		"/openapi/v2": text}, nil))
	target := c.index()["apis/wardle.example.com/v1"]
	require.Contains(t, target, "?hash=")
	got := c.get(target)
	require.Equal(t, http.StatusOK, got.code, got.body)
	require.Contains(t, got.body, `"#/components/schemas/io.example.Flunder"`)
}

// When another server serves a group in place of this one, that server's documents are used.
func TestOpenAPI_ExcludesKindsServedElsewhere(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{Registry: api.NewRegistry(append(builtin.Kinds(), builtin.Metrics()...)...)})
	require.Contains(t, c.index(), "apis/metrics.k8s.io/v1beta1")
	require.Contains(t, c.spec2().Paths, "/apis/metrics.k8s.io/v1beta1/nodes")
	e := newExtension(t, true, "ext.default.svc")
	c.service("ext", "10.1.0.7", e)
	c.register("v1beta1", "metrics.k8s.io", "ext", e.ca)
	c.routed("/apis/metrics.k8s.io/v1beta1")
	require.NotContains(t, c.index(), "apis/metrics.k8s.io/v1beta1")
	require.NotContains(t, c.spec2().Paths, "/apis/metrics.k8s.io/v1beta1/nodes")
	require.Contains(t, c.index(), "api/v1")
}
