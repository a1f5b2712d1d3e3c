package apiserver_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	// An import of etcd starts glog's flusher, which lives as long as the process. The SPDY library of the kubelet and
	// of its clients waits, after a close, for streams that do not end.
	leak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

const (
	pods        = "/api/v1/namespaces/default/pods"
	configMaps  = "/api/v1/namespaces/default/configmaps"
	deployments = "/apis/apps/v1/namespaces/default/deployments"
	namespaces  = "/api/v1/namespaces"
	secrets     = "/api/v1/namespaces/default/secrets"
	nodes       = "/api/v1/nodes"

	mergePatch     = "application/merge-patch+json"
	jsonPatch      = "application/json-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"

	asTable   = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asPartial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	asYAML    = "application/yaml"
)

// server is a client of an API server, as an administrator.
type server struct {
	t      testing.TB
	config *rest.Config
	http   *http.Client
	bearer string // a token to send, if any
}

func start(t testing.TB) *server {
	t.Helper()
	return connect(t, testenv.Start(t, testenv.APIServerOnly()))
}

func connect(t testing.TB, config *rest.Config) *server {
	t.Helper()
	return &server{t: t, config: config, http: httpClient(t, config, true)}
}

// httpClient returns a client with connections of its own, over HTTP/2 or HTTP/1.1.
func httpClient(t testing.TB, config *rest.Config, http2 bool) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(config.CAData))
	tc := &tls.Config{RootCAs: roots}
	if len(config.CertData) > 0 {
		cert, err := tls.X509KeyPair(config.CertData, config.KeyData)
		require.NoError(t, err)
		tc.Certificates = []tls.Certificate{cert}
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{TLSClientConfig: tc, Protocols: protocols, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// subtest reports failures to a subtest until it has ended. The subtest must not run in parallel with its siblings.
func (s *server) subtest(t *testing.T) {
	parent := s.t
	s.t = t
	t.Cleanup(func() { s.t = parent })
}

func (s *server) typed() *kubernetes.Clientset {
	s.t.Helper()
	client, err := kubernetes.NewForConfigAndClient(s.config, s.http)
	require.NoError(s.t, err)
	return client
}

// answer is a response that has been read completely.
type answer struct {
	t      testing.TB
	code   int
	header http.Header
	body   []byte
}

// do sends one request. A body may be a string, bytes, a reader or a value that is encoded as JSON; headers are pairs
// of a name and a value.
func (s *server) do(method, path string, body any, headers ...string) *answer {
	s.t.Helper()
	res := s.send(method, path, body, headers...)
	defer res.Body.Close()
	stop := time.AfterFunc(patience, func() { _ = res.Body.Close() })
	defer stop.Stop()
	content, err := io.ReadAll(res.Body)
	require.NoError(s.t, err, "%s %s", method, path)
	return &answer{t: s.t, code: res.StatusCode, header: res.Header, body: content}
}

func (s *server) send(method, path string, body any, headers ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.config.Host+path, reader(s.t, body))
	require.NoError(s.t, err)
	if s.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+s.bearer)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.http.Do(req)
	require.NoError(s.t, err, "%s %s", method, path)
	return res
}

func reader(t testing.TB, body any) io.Reader {
	t.Helper()
	switch b := body.(type) {
	case nil:
		return http.NoBody
	case string:
		return strings.NewReader(b)
	case []byte:
		return bytes.NewReader(b)
	case io.Reader:
		return b
	}
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return bytes.NewReader(text)
}

func (s *server) get(path string, headers ...string) *answer {
	s.t.Helper()
	return s.do(http.MethodGet, path, nil, headers...)
}

// create posts an object and requires success.
func (s *server) create(path string, body any) *answer {
	s.t.Helper()
	return s.do(http.MethodPost, path, body).ok(http.StatusCreated)
}

func (s *server) patch(path, kind string, body any) *answer {
	s.t.Helper()
	return s.do(http.MethodPatch, path, body, "Content-Type", kind)
}

func (s *server) put(path string, body any) *answer {
	s.t.Helper()
	return s.do(http.MethodPut, path, body)
}

func (s *server) delete(path string, body any) *answer {
	s.t.Helper()
	return s.do(http.MethodDelete, path, body)
}

// gone requires that a path is not found.
func (s *server) gone(path string) {
	s.t.Helper()
	s.get(path).refused(http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
}

func (a *answer) ok(code int) *answer {
	a.t.Helper()
	require.Equal(a.t, code, a.code, "%s", a.body)
	return a
}

// refused requires a Status with a code, a reason and these words in its message.
func (a *answer) refused(code int, reason metav1.StatusReason, words string) *metav1.Status {
	a.t.Helper()
	require.Equal(a.t, code, a.code, "%s", a.body)
	var status metav1.Status
	require.NoError(a.t, json.Unmarshal(a.body, &status), "%s", a.body)
	require.Equal(a.t, metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, status.TypeMeta)
	require.Equal(a.t, metav1.StatusFailure, status.Status)
	require.EqualValues(a.t, code, status.Code)
	require.Equal(a.t, reason, status.Reason, "%s", a.body)
	require.Contains(a.t, status.Message, words)
	return &status
}

// object decodes the body as an object.
func (a *answer) object() *unstructured.Unstructured {
	a.t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(a.t, json.Unmarshal(a.body, &u.Object), "%s", a.body)
	return u
}

// at returns the value of a field, nil if there is none.
func (a *answer) at(fields ...string) any {
	a.t.Helper()
	v, _, err := unstructured.NestedFieldNoCopy(a.object().Object, fields...)
	require.NoError(a.t, err)
	return v
}

// names returns the names of the items of a list.
func (a *answer) names() []string {
	a.t.Helper()
	var list metav1.PartialObjectMetadataList
	require.NoError(a.t, json.Unmarshal(a.body, &list), "%s", a.body)
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names
}

// watchStream reads the events of a watch.
type watchStream struct {
	t    testing.TB
	res  *http.Response
	scan *bufio.Scanner
}

// patience is how long a test waits for a server that does not answer.
const patience = time.Minute

// tick is the interval at which a condition is polled.
const tick = 5 * time.Millisecond

type event struct {
	Type   string
	Object *unstructured.Unstructured
}

// watch opens a watch, which the end of the test closes.
func (s *server) watch(path string, headers ...string) *watchStream {
	s.t.Helper()
	res := s.send(http.MethodGet, path, nil, headers...)
	s.t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(s.t, http.StatusOK, res.StatusCode)
	scan := bufio.NewScanner(res.Body)
	scan.Buffer(nil, 1<<20)
	return &watchStream{t: s.t, res: res, scan: scan}
}

// next waits for the next event. It returns false when the stream has ended.
func (w *watchStream) next() (event, bool) {
	w.t.Helper()
	// Without this, a server that sends no event would block the test until the binary times out.
	stop := time.AfterFunc(patience, func() { _ = w.res.Body.Close() })
	defer stop.Stop()
	if !w.scan.Scan() {
		return event{}, false
	}
	var e struct {
		Type   string         `json:"type"`
		Object map[string]any `json:"object"`
	}
	require.NoError(w.t, json.Unmarshal(w.scan.Bytes(), &e), "%s", w.scan.Bytes())
	return event{Type: e.Type, Object: &unstructured.Unstructured{Object: e.Object}}, true
}

// expect requires the next event to have this type and name.
func (w *watchStream) expect(kind, name string) event {
	w.t.Helper()
	e, ok := w.next()
	require.True(w.t, ok, "the watch ended: %v", w.scan.Err())
	require.Equal(w.t, kind+" "+name, e.Type+" "+e.Object.GetName())
	return e
}

type m = map[string]any

func pod(name string) m {
	return m{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": m{"name": name},
		"spec":     m{"containers": []any{m{"name": "main", "image": "nginx"}}},
	}
}

func configMap(name string) m {
	return m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": name}, "data": m{"k": "v"}}
}

func deployment(name string, replicas int) m {
	return m{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": m{"name": name},
		"spec": m{
			"replicas": replicas,
			"selector": m{"matchLabels": m{"app": name}},
			"template": m{
				"metadata": m{"labels": m{"app": name}},
				"spec":     m{"containers": []any{m{"name": "main", "image": "nginx"}}},
			},
		},
	}
}

// with sets a field of an object's metadata.
func with(obj m, field string, value any) m {
	obj["metadata"].(m)[field] = value
	return obj
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
