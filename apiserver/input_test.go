package apiserver_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFieldValidation_UnknownAndDuplicateFields(t *testing.T) {
	t.Parallel()
	s := start(t)
	const (
		unknown   = `{"metadata":{"name":"%s"},"data":{"k":"v"},"spec":{"foo":1}}`
		duplicate = `{"metadata":{"name":"%s"},"data":{"k":"v"},"data":{"k":"w"}}`
		nested    = `{"metadata":{"name":"%s","colour":"red"},"data":{"k":"v"}}`
		twiceYAML = "metadata:\n  name: %s\ndata:\n  k: v\n  k: w\n"
	)
	for i, c := range []struct{ media, body, words string }{
		{"application/json", unknown, `unknown field "spec"`},
		{"application/json", duplicate, `duplicate field "data"`},
		{"application/json", nested, `unknown field "metadata.colour"`},
		{"application/yaml", twiceYAML, `key "k" already set in map`},
	} {
		for _, mode := range []string{"", "Warn", "Ignore", "Strict"} {
			name := strings.ToLower(fmt.Sprintf("c%d%s", i, mode))
			a := s.do(http.MethodPost, configMaps+"?fieldValidation="+mode, fmt.Sprintf(c.body, name),
				"Content-Type", c.media)
			warnings := a.header.Values("Warning")
			switch mode {
			case "Strict":
				a.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
					`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: `)
				require.Contains(t, string(a.body), strings.ReplaceAll(c.words, `"`, `\"`))
				s.gone(configMaps + "/" + name)
			case "Ignore":
				a.ok(http.StatusCreated)
				require.Empty(t, warnings)
			default:
				a.ok(http.StatusCreated)
				require.Len(t, warnings, 1)
				require.True(t, strings.HasPrefix(warnings[0], `299 - "`), warnings[0])
				require.Contains(t, strings.ReplaceAll(warnings[0], `\"`, `"`), c.words)
			}
		}
	}
	s.do(http.MethodPost, configMaps+"?fieldValidation=Lax", configMap("x")).refused(http.StatusUnprocessableEntity,
		metav1.StatusReasonInvalid, `fieldValidation: Unsupported value: "Lax"`)
}

func TestFieldValidation_OnUpdateAndPatch(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(deployments, deployment("web", 1))
	path := deployments + "/web"
	body := deployment("web", 2)
	body["spec"].(m)["foo"] = 1
	s.put(path+"?fieldValidation=Strict", body).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		`strict decoding error: unknown field "spec.foo"`)
	require.Equal(t, []string{`299 - "unknown field \"spec.foo\""`},
		s.put(path, body).ok(http.StatusOK).header.Values("Warning"))
	for _, kind := range []string{mergePatch, strategicPatch} {
		s.patch(path+"?fieldValidation=Strict", kind, `{"spec":{"foo":1,"replicas":9}}`).
			refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
				`strict decoding error: unknown field "spec.foo"`)
		require.Equal(t, []string{`299 - "unknown field \"spec.foo\""`},
			s.patch(path, kind, `{"spec":{"foo":1}}`).ok(http.StatusOK).header.Values("Warning"))
	}
	require.EqualValues(t, 2, s.get(path).at("spec", "replicas"))
}

func TestWarnings_AreCutToLength(t *testing.T) {
	t.Parallel()
	s := start(t)
	var fields []string
	for i := range 90 {
		fields = append(fields, fmt.Sprintf(`"%s%02d":1`, strings.Repeat("x", 20000), i))
	}
	a := s.do(http.MethodPost, configMaps, `{"metadata":{"name":"a"},`+strings.Join(fields, ",")+
		`}`).ok(http.StatusCreated)
	size := 0
	for _, w := range a.header.Values("Warning") {
		size += len(w)
	}
	require.NotZero(t, size)
	require.Less(t, size, 8192)
}

func TestBadInput_IsRejectedAndNotStored(t *testing.T) {
	t.Parallel()
	s := start(t)
	long := strings.Repeat("a", 300)
	for name, c := range map[string]struct {
		path, media, body string
		code              int
		reason            metav1.StatusReason
		words             string
	}{
		"malformed JSON":   {configMaps, "", `{"metadata":`, 400, metav1.StatusReasonBadRequest, ""},
		"trailing garbage": {configMaps, "", `{"metadata":{"name":"a"}} x`, 400, metav1.StatusReasonBadRequest, ""},
		"two documents": {configMaps, "", `{"metadata":{"name":"a"}}{"metadata":{"name":"b"}}`, 400,
			metav1.StatusReasonBadRequest, ""},
		"a list":   {configMaps, "", `[{"metadata":{"name":"a"}}]`, 400, metav1.StatusReasonBadRequest, ""},
		"a string": {configMaps, "", `"a"`, 400, metav1.StatusReasonBadRequest, ""},
		"a number": {configMaps, "", `1`, 400, metav1.StatusReasonBadRequest, ""},
		"null": {configMaps, "", `null`, 422, metav1.StatusReasonInvalid,
			"name or generateName is required"},
		"nothing":        {configMaps, "", ``, 400, metav1.StatusReasonBadRequest, ""},
		"blanks":         {configMaps, "", " \n ", 400, metav1.StatusReasonBadRequest, ""},
		"malformed YAML": {configMaps, asYAML, "metadata:\n\t- a: [", 400, metav1.StatusReasonBadRequest, ""},
		"a YAML bomb":    {configMaps, asYAML, yamlBomb(), 400, metav1.StatusReasonBadRequest, ""},
		"empty YAML":     {configMaps, asYAML, "", 0, "", ""},
		"another kind": {configMaps, "", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"}}`, 400,
			metav1.StatusReasonBadRequest, `Secret in version "v1" cannot be handled as a ConfigMap`},
		"another version": {configMaps, "", `{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"a"}}`, 400,
			metav1.StatusReasonBadRequest,
			`the API version in the data (v2) does not match the expected API version (v1)`},
		"another namespace": {configMaps, "", `{"metadata":{"name":"a","namespace":"b"}}`, 400,
			metav1.StatusReasonBadRequest,
			"the namespace of the provided object does not match the namespace sent on the request"},
		"no name": {configMaps, "", `{}`, 422, metav1.StatusReasonInvalid,
			"name or generateName is required"},
		"upper case name": {configMaps, "", `{"metadata":{"name":"A"}}`, 422, metav1.StatusReasonInvalid,
			`ConfigMap "A" is invalid: metadata.name: Invalid value: "A"`},
		"NUL in name": {configMaps, "", `{"metadata":{"name":"a\u0000"}}`, 422, metav1.StatusReasonInvalid,
			"metadata.name"},
		"slash in name": {configMaps, "", `{"metadata":{"name":"a/b"}}`, 422, metav1.StatusReasonInvalid,
			"metadata.name"},
		"dots for a name": {configMaps, "", `{"metadata":{"name":".."}}`, 422, metav1.StatusReasonInvalid,
			"metadata.name"},
		"long name": {configMaps, "", `{"metadata":{"name":"` + long + `"}}`, 422,
			metav1.StatusReasonInvalid, "metadata.name"},
		"bad generateName": {configMaps, "", `{"metadata":{"generateName":"A_"}}`, 422, metav1.StatusReasonInvalid,
			"metadata.generateName"},
		"long generateName": {configMaps, "", `{"metadata":{"generateName":"` + long + `"}}`, 422,
			metav1.StatusReasonInvalid, "metadata.generateName"},
		"bad label key": {configMaps, "", `{"metadata":{"name":"a","labels":{"a b":"c"}}}`, 422,
			metav1.StatusReasonInvalid, "metadata.labels"},
		"bad label value": {configMaps, "", `{"metadata":{"name":"a","labels":{"a":"b c"}}}`, 422,
			metav1.StatusReasonInvalid, "metadata.labels"},
		"bad annotation": {configMaps, "", `{"metadata":{"name":"a","annotations":{"a b":"c"}}}`, 422,
			metav1.StatusReasonInvalid, "metadata.annotations"},
		"huge annotations": {configMaps, "", `{"metadata":{"name":"a","annotations":{"a":"` +
			strings.Repeat("x", 300<<10) + `"}}}`, 422, metav1.StatusReasonInvalid, "metadata.annotations"},
		"bad finalizer": {configMaps, "", `{"metadata":{"name":"a","finalizers":["a b"]}}`, 422,
			metav1.StatusReasonInvalid, "metadata.finalizers"},
		"bad owner": {configMaps, "", `{"metadata":{"name":"a","ownerReferences":[{"name":"x"}]}}`, 422,
			metav1.StatusReasonInvalid, "metadata.ownerReferences"},
		"a wrong type": {configMaps, "", `{"metadata":{"name":"a"},"data":{"k":1}}`, 400,
			metav1.StatusReasonBadRequest, "cannot be handled as a ConfigMap"},
		"deep nesting": {configMaps, "", strings.Repeat(`{"a":`, 100000) + "1" + strings.Repeat("}", 100000),
			400, metav1.StatusReasonBadRequest, "nested"},
		"deep lists": {configMaps, "", strings.Repeat("[", 1<<20), 400, metav1.StatusReasonBadRequest,
			"nested"},
		"deep YAML": {configMaps, asYAML, strings.Repeat("[", 50000), 400, metav1.StatusReasonBadRequest,
			""},
		"10 MiB": {configMaps, "", `{"metadata":{"name":"a"},"data":{"k":"` +
			strings.Repeat("x", 10<<20) + `"}}`, 413, metav1.StatusReasonRequestEntityTooLarge, "limit is 3145728"},
		"more than etcd takes": {configMaps, "", `{"metadata":{"name":"a"},"data":{"k":"` + strings.Repeat("x", 5<<19) +
			`"}}`, 0, "", ""},
		"a replica count": {deployments, "", `{"metadata":{"name":"a"},"spec":{"replicas":"many"}}`, 400,
			metav1.StatusReasonBadRequest, ""},
		"a huge number": {deployments, "", `{"metadata":{"name":"a"},"spec":{"replicas":99999999999999999999}}`,
			400, metav1.StatusReasonBadRequest, ""},
		"a pod of nothing": {pods, "", `{"metadata":{"name":"a"},"spec":{}}`, 422, metav1.StatusReasonInvalid,
			"spec.containers: Required value"},
		"a short ttl": {configMaps, "", `{"metadata":{"name":"a","annotations":{"coxswain.dev/ttl":"soon"}}}`,
			422, metav1.StatusReasonInvalid, "coxswain.dev/ttl"},
		"a cluster-wide post": {"/api/v1/configmaps", "", `{"metadata":{"name":"a"}}`, 405,
			metav1.StatusReasonMethodNotAllowed, ""},
		"a namespaced node": {"/api/v1/namespaces/default/nodes", "", `{"metadata":{"name":"a"}}`, 404,
			metav1.StatusReasonNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: s.http}
			media := c.media
			if media == "" {
				media = "application/json"
			}
			a := s.do(http.MethodPost, c.path, c.body, "Content-Type", media)
			require.True(t, 400 <= a.code && a.code < 500, "%d %s", a.code, a.body)
			if c.code != 0 {
				a.refused(c.code, c.reason, c.words)
			}
			// The server has one of its own in kube-system.
			require.Empty(t,
				s.get(c.path[:strings.LastIndex(c.path, "/")]+
					"/configmaps?fieldSelector=metadata.namespace!=kube-system").names())
		})
	}
	s.create(configMaps, configMap("a"))
}

// yamlBomb returns a small document that is huge once its aliases are expanded.
func yamlBomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	return b.String()
}

func TestBadInput_UpdatesMustFitTheirPath(t *testing.T) {
	t.Parallel()
	s := start(t)
	stored := s.create(configMaps, configMap("a")).object()
	s.put(configMaps+"/a", configMap("b")).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"the name of the object (b) does not match the name on the URL (a)")
	s.put(configMaps+"/a", with(configMap("a"), "namespace", "kube-system")).refused(http.StatusBadRequest,
		metav1.StatusReasonBadRequest, "does not match the namespace")
	s.put(configMaps+"/a", with(configMap("a"), "resourceVersion", "abc")).ok(http.StatusBadRequest)
	s.put(configMaps+"/a", m{"kind": "Secret", "apiVersion": "v1", "metadata": m{"name": "a"}}).ok(
		http.StatusBadRequest)
	s.put(configMaps, configMap("a")).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
	s.do(http.MethodPost, configMaps+"/a", configMap("a")).refused(http.StatusMethodNotAllowed,
		metav1.StatusReasonMethodNotAllowed, "")
	require.Equal(t, stored, s.get(configMaps+"/a").object())
}

func TestBadInput_PathsThatLeadNowhere(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	s.create("/api/v1/namespaces/default/secrets", m{"metadata": m{"name": "a"}})
	for _, path := range []string{
		"/api/v1/nothings", "/api/v2/pods", "/api/v2", "/apis/none", "/apis/none/v1", "/apis/none/v1/pods",
		"/apis/apps/v9/deployments",
		"/apis//v1/pods", "/nothing", "/api/v1/pods/a", "/api/v1/namespaces/default/nodes",
		"/api/v1/namespaces/default/pods/a/b/c",
		configMaps + "/%2e%2e", configMaps + "/..", configMaps + "/%2e%2e%2fsecrets%2fa", configMaps +
			"/..%2Fsecrets%2Fa",
		configMaps + "/a%00", configMaps + "/%00", configMaps + "/a%2fb", configMaps + "/%ff%fe",
		"/api/v1/namespaces/..%2f..%2fdefault/configmaps/a", "/api/v1/namespaces/default%2fconfigmaps%2fa/configmaps/a",
		configMaps + "/" + strings.Repeat("a", 5000),
	} {
		s.get(path).refused(http.StatusNotFound, metav1.StatusReasonNotFound, "")
	}
	// A name that is escaped without need is found.
	s.get(configMaps + "/%61").ok(http.StatusOK)
	s.get(configMaps + "/a%2f").ok(http.StatusOK)
	for _, path := range []string{configMaps + "?limit=%zz", configMaps + "?labelSelector=%"} {
		s.get(path).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid query")
	}
}

func TestBadInput_UnknownMethodsAre405(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, method := range []string{http.MethodOptions, http.MethodTrace, "PROPFIND", "BREW"} {
		for _, path := range []string{configMaps, configMaps + "/a", "/api", "/version"} {
			a := s.do(method, path, nil)
			a.refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
		}
	}
	require.NotContains(t, string(s.get("/metrics").body), "BREW", "clients cannot make metrics")
}

func TestBadInput_QueryValues(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, query := range []string{"limit=x", "limit=1.5", "resourceVersion=x", "timeout=x", "timeout=-5s",
		"continue=" + url.QueryEscape("\x00")} {
		s.get(configMaps+"?"+query).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "")
	}
	for _, query := range []string{"dryRun=None", "dryRun=all", "dryRun=All&dryRun=Some"} {
		s.do(http.MethodPost, configMaps+"?"+query, configMap("a")).refused(http.StatusUnprocessableEntity,
			metav1.StatusReasonInvalid, "dryRun: Unsupported value")
	}
	s.gone(configMaps + "/a")
}

// A client that does not speak HTTP must not affect others.
func TestBadInput_GarbageOnTheWire(t *testing.T) {
	t.Parallel()
	s := start(t)
	address := strings.TrimPrefix(s.config.Host, "https://")
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff" + strings.Repeat("x", 4000),
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, _ = io.WriteString(conn, garbage) // the server may close the connection before the end
		_ = conn.(*net.TCPConn).CloseWrite() // the server may have closed it already
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
	}
	s.get(pods).ok(http.StatusOK)
}

// A resourceVersion on a new object is rejected after all other checks, and not in a dry run, as by the storage of
// kube-apiserver.
func TestCreate_WithARevisionIsRefusedByTheStorage(t *testing.T) {
	t.Parallel()
	s := start(t)
	const words = "resourceVersion should not be set on objects to be created"
	doc := with(configMap("a"), "resourceVersion", "5")
	s.do(http.MethodPost, configMaps, doc).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, words)
	s.gone(configMaps + "/a")
	s.do(http.MethodPost, configMaps+"?dryRun=All", doc).ok(http.StatusCreated)
	s.gone(configMaps + "/a")
	invalid := with(configMap("a/b"), "resourceVersion", "5")
	s.do(http.MethodPost, configMaps, invalid).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
		"metadata.name")
	s.create(configMaps, with(configMap("zero"), "resourceVersion", "0"))
	s.do(http.MethodPost, configMaps, with(configMap("zero"), "resourceVersion", "5")).refused(
		http.StatusBadRequest, metav1.StatusReasonBadRequest, words)
	s.do(http.MethodPost, configMaps+"?dryRun=All", with(configMap("zero"), "resourceVersion", "5")).refused(
		http.StatusConflict, metav1.StatusReasonAlreadyExists, "")
}
