package aggregation_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/testenv/leak"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	// patience is how long a test waits for a server, and tick how often it polls.
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

type object = map[string]any

// frontProxy returns the authority that signs the certificates API servers present to aggregated ones.
var frontProxy = sync.OnceValue(func() *pki.CA {
	ca, err := pki.NewCA()
	if err != nil {
		panic(err)
	}
	return ca
})

// extension is an API server that extends another one. It answers requests with its handler and requires the front
// proxy's certificate.
type extension struct {
	*httptest.Server
	ca *pki.CA

	mu      sync.Mutex
	answer  http.HandlerFunc
	seen    []*http.Request
	checked int // requests of the aggregator's own
}

// newExtension starts an extension with a certificate for the names. http2 enables HTTP/2.
func newExtension(t testing.TB, http2 bool, names ...string) *extension {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	cert, err := ca.Server(names...)
	require.NoError(t, err)
	e := &extension{ca: ca}
	e.Server = httptest.NewUnstartedServer(e)
	e.EnableHTTP2 = http2
	e.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: frontProxy().Pool()}
	e.Config.ErrorLog = log.New(io.Discard, "", 0) // handshake errors
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *extension) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	own := r.Header.Get("X-Remote-User") == "system:kube-aggregator"
	if own {
		e.checked++
	} else {
		e.seen = append(e.seen, r)
	}
	answer := e.answer
	e.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	if own {
		_, _ = io.WriteString(w, `{}`)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object{"path": r.URL.Path, "query": r.URL.RawQuery, "method": r.Method,
		"user": r.Header.Get("X-Remote-User"), "header": r.Header})
}

// answers replaces the handler of the extension.
func (e *extension) answers(answer http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

// requests returns the requests of users since the last call.
func (e *extension) requests() []*http.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.seen
	e.seen = nil
	return seen
}

// network maps the addresses of pods to the servers of a test.
type network struct {
	mu sync.Mutex
	at map[string]string
}

func (n *network) lead(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at = map[string]string{}
	}
	n.at[from] = to
}

func (n *network) dial(ctx context.Context, protocol, address string) (net.Conn, error) {
	n.mu.Lock()
	if to := n.at[address]; to != "" {
		address = to
	}
	n.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, protocol, address)
}

// cluster is an API server with clients.
type cluster struct {
	*servertest.Server
	t            testing.TB
	pods         *network
	core         *kubernetes.Clientset
	registration *clientset.Clientset
	http         *http.Client
}

func start(t testing.TB, o apiserver.Options) *cluster {
	t.Helper()
	c := &cluster{t: t, pods: &network{}}
	cert, key, err := frontProxy().Client("front-proxy-client")
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	if o.ProxyClient == nil {
		o.ProxyClient = func() (*tls.Certificate, error) { return &pair, nil }
	}
	o.Kubelet = proxy.KubeletOptions{Dial: c.pods.dial}
	c.Server = servertest.Start(t, o)
	c.core = c.Client(t)
	c.http = c.client("", true)
	c.registration, err = clientset.NewForConfigAndClient(c.Config, c.http)
	require.NoError(t, err)
	return c
}

// client returns a client for a user, or for the administrator if user is "".
func (c *cluster) client(user string, http2 bool, groups ...string) *http.Client {
	c.t.Helper()
	cert, key := c.Config.CertData, c.Config.KeyData
	if user != "" {
		var err error
		cert, key, err = c.CA.Client(user, groups...)
		require.NoError(c.t, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(c.t, err)
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{Protocols: protocols,
		TLSClientConfig: &tls.Config{RootCAs: c.CA.Pool(), Certificates: []tls.Certificate{pair}}}
	c.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// service makes a Service with the extension as its only endpoint.
func (c *cluster) service(name, ip string, e *extension) {
	c.t.Helper()
	ctx := c.t.Context()
	_, err := c.core.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.pods.lead(ip+":8443", e.Listener.Addr().String())
	_, err = c.core.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(8443))}}}, metav1.CreateOptions{})
	require.NoError(c.t, err)
}

// register makes the APIService for a group and version that a Service serves.
func (c *cluster) register(version, group, service string, ca *pki.CA) *apiregistrationv1.APIService {
	c.t.Helper()
	s := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
		Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 2000,
			VersionPriority: 10, CABundle: ca.PEM(),
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: service}}}
	s, err := c.registration.ApiregistrationV1().APIServices().Create(c.t.Context(), s, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return s
}

// condition returns the condition Available as "STATUS REASON MESSAGE".
func (c *cluster) condition(name string) string {
	c.t.Helper()
	s, err := c.registration.ApiregistrationV1().APIServices().Get(c.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "gone"
	}
	require.NoError(c.t, err)
	for _, c := range s.Status.Conditions {
		return string(c.Status) + " " + c.Reason + " " + c.Message
	}
	return ""
}

// becomes waits until the APIService has the condition.
func (c *cluster) becomes(name, condition string) {
	c.t.Helper()
	var last string
	require.Eventually(c.t, func() bool {
		last = c.condition(name)
		return last == condition
	}, patience, tick, "%s, not %s", &last, condition)
}

const passed = "True Passed all checks passed"

// extended starts a server and an extension that serves wardle.example.com/v1.
func extended(t testing.TB, http2 bool) (*cluster, *extension) {
	t.Helper()
	return extend(t, apiserver.Options{}, http2)
}

// extend does the same as extended, with options for the server.
func extend(t testing.TB, o apiserver.Options, http2 bool) (*cluster, *extension) {
	t.Helper()
	c, e := start(t, o), newExtension(t, http2, "wardle.default.svc")
	c.service("wardle", "10.1.0.5", e)
	c.register("v1", "wardle.example.com", "wardle", e.ca)
	c.becomes("v1.wardle.example.com", passed)
	c.routed("/apis/wardle.example.com/v1")
	return c, e
}

// routed waits until requests for a path are proxied, since the watch delivers the condition asynchronously.
func (c *cluster) routed(path string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		s := c.Aggregated(path)
		return s != nil && s.Available
	}, patience, tick)
}

// answer is a response that was read completely.
type answer struct {
	code   int
	header http.Header
	body   string
}

// do makes a request. Headers are pairs of name and value.
func (c *cluster) do(client *http.Client, method, path string, body []byte, headers ...string) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.Config.Host+path, bytes.NewReader(body))
	require.NoError(c.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	res, err := client.Do(req)
	require.NoError(c.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return answer{res.StatusCode, res.Header, string(text)}
}

func (c *cluster) get(path string, headers ...string) answer {
	c.t.Helper()
	return c.do(c.http, http.MethodGet, path, nil, headers...)
}
