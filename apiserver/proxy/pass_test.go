package proxy_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/apiserver/proxy/proxytest"
)

func TestPass_KeepsCredentialsFromTheBackend(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	f := withAgent(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	const bearer = "base64url.bearer.authorization.k8s.io.c2VjcmV0"
	f.get(nodes+"/n/proxy/x", "Authorization", "Bearer secret", "Coxswain-Node", "another",
		"Sec-Websocket-Protocol", bearer+", v5.channel.k8s.io", "X-Forwarded-For", "192.0.2.1").ok(http.StatusOK)
	h := <-seen
	require.Empty(t, h.Get("Authorization"))
	require.Equal(t, []string{"n"}, h.Values("Coxswain-Node"), "clients may not choose it")
	require.Equal(t, "v5.channel.k8s.io", h.Get("Sec-Websocket-Protocol"))
	require.Equal(t, "192.0.2.1, 127.0.0.1", h.Get("X-Forwarded-For"))
	require.Equal(t, nodes+"/n/proxy/x", h.Get("X-Forwarded-Uri"))

	f.get(pods+"/https:web:8443/proxy/x", "Coxswain-Node", "another").ok(http.StatusOK)
	require.Empty(t, (<-seen).Values("Coxswain-Node"), "only agents serve several nodes")
}

func TestPass_ConvertsErrorsOfAgentsToStatuses(t *testing.T) {
	t.Parallel()
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("tailLines") {
		case "1":
			http.Error(w, "no such container", http.StatusNotFound)
		case "2":
			http.Error(w, "out of order", http.StatusInternalServerError)
		case "3":
			http.Redirect(w, r, "https://elsewhere.invalid/", http.StatusFound)
		case "4":
			panic(http.ErrAbortHandler)
		}
	})
	const log = pods + "/alone/log?tailLines="
	f.get(log+"1").refused(http.StatusNotFound, metav1.StatusReasonNotFound,
		"the server could not find the requested resource (get pods/log alone)")
	f.get(log+"2").refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "out of order")
	f.get(log+"3").refused(http.StatusBadGateway, "BadGateway", "attempted to redirect this request")
	require.GreaterOrEqual(t, f.get(log+"4").code, http.StatusInternalServerError)
}

func TestKubelet_AddressesAndCertificates(t *testing.T) {
	t.Parallel()
	f := withKubelet(t)
	f.pod("lost", "nowhere")
	f.get(pods+"/lost/log").refused(http.StatusInternalServerError, metav1.StatusReasonInternalError,
		"no preferred addresses found; known addresses: [{Hostname nowhere.invalid}]")
	f.pod("orphan", "gone")
	f.get(pods+"/orphan/log").refused(http.StatusNotFound, metav1.StatusReasonNotFound, `nodes "gone" not found`)

	// The certificate is for 127.0.0.1.
	f.edit("Node", "n", func(obj api.Object) {
		obj.(*corev1.Node).Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: proxytest.PodIP}}
	})
	refused := f.get(pods + "/alone/log")
	refused.refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "")
	require.Contains(t, refused.body, "certificate")
	f.get(pods + "/alone/log?insecureSkipTLSVerifyBackend=true").ok(http.StatusOK)
	f.get(pods+"/alone/log").refused(http.StatusInternalServerError, metav1.StatusReasonInternalError, "")
}

func TestAskAgent_NamesTheNode(t *testing.T) {
	t.Parallel()
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path+" of "+r.Header.Get("Coxswain-Node"))
	})
	res, err := f.proxy.AskAgent(t.Context(), "n", "/stats/summary")
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, "/stats/summary of n", string(body))
	for _, node := range []string{"mute", "nowhere", "gone"} {
		_, err := f.proxy.AskAgent(t.Context(), node, "/stats/summary")
		var refusal apierrors.APIStatus
		require.True(t, errors.As(err, &refusal), "%s: %v", node, err)
	}
}

func TestForward_RejectsAddressesThatClientsMustNotReach(t *testing.T) {
	t.Parallel()
	f := withKubelet(t)
	allow := func(ip string) *answer {
		f.edit("Pod", "web", func(obj api.Object) { obj.(*corev1.Pod).Status.PodIPs = []corev1.PodIP{{IP: ip}} })
		return f.get(pods + "/https:web:8443/proxy/pod/x")
	}
	require.Equal(t, "GET /pod/x for nobody", allow(proxytest.PodIP).ok(http.StatusOK).body)
	for _, ip := range []string{"", "127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "web"} {
		allow(ip).refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "address not allowed")
	}
	f.get(nodes+"/n:10/proxy/").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "address not allowed")
	f.get(pods+"/a:b:c:d/proxy/").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		`invalid pod request "a:b:c:d"`)
}

func TestForward_ReachesReadyEndpointsThatArePods(t *testing.T) {
	t.Parallel()
	f := withKubelet(t)
	f.put("Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "svc"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}})
	slice := func(ready bool, ip string, of *corev1.ObjectReference) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "svc"}},
			Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, TargetRef: of,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
	}
	web := &corev1.ObjectReference{Kind: "Pod", Name: "web"}
	const path = services + "/https:svc:443/proxy/pod/x"
	for name, s := range map[string]*discoveryv1.EndpointSlice{
		"not ready":        slice(false, proxytest.PodIP, web),
		"not a pod":        slice(true, proxytest.PodIP, nil),
		"another's":        slice(true, proxytest.PodIP, &corev1.ObjectReference{Kind: "Pod", Name: "alone"}),
		"of no pod":        slice(true, proxytest.PodIP, &corev1.ObjectReference{Kind: "Pod", Name: "none"}),
		"elsewhere":        slice(true, "192.0.2.1", web),
		"the server's own": slice(true, "127.0.0.1", web),
	} {
		f.slices = []*discoveryv1.EndpointSlice{s}
		a := f.get(path)
		require.Equal(t, http.StatusServiceUnavailable, a.code, name)
		a.refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			`no endpoints available for service "svc"`)
	}
	f.slices = append(f.slices, slice(true, proxytest.PodIP, web))
	for range 10 {
		require.Equal(t, "GET /pod/x for nobody", f.get(path).ok(http.StatusOK).body)
	}
	f.get(services+"/svc:80/proxy/").refused(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		`no service port 80 found for service "svc"`)
}

func TestForward_KeepsRedirectsBelowTheProxy(t *testing.T) {
	t.Parallel()
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", strings.TrimPrefix(r.URL.Path, "/to:"))
		w.WriteHeader(http.StatusFound)
	})
	for to, want := range map[string]string{
		"/elsewhere":             nodes + "/n/proxy/elsewhere",
		"relative":               "relative",
		"//other.example/page":   "//other.example/page",
		"https://other.example/": "https://other.example/",
	} {
		a := f.get(nodes + "/n/proxy/to:" + to).ok(http.StatusFound)
		require.Equal(t, want, a.header.Get("Location"), to)
	}
	a := f.get(nodes + "/n/proxy?a=b").ok(http.StatusMovedPermanently)
	require.Equal(t, nodes+"/n/proxy/?a=b", a.header.Get("Location"), "links are relative to the page's path")
}

func TestConnects_ListsThePathsWithoutADeadline(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		pods + "/web/exec":                   true,
		pods + "/web/proxy/exec":             true,
		services + "/svc/proxy/":             true,
		nodes + "/n/proxy/logs":              true,
		pods + "/web":                        false,
		pods + "/web/status":                 false,
		pods + "/exec":                       false,
		services + "/svc/exec":               false,
		"/api/v1/namespaces/exec":            false,
		"/apis/apps/v1/pods/web/exec":        false,
		"/api/v1/namespaces/pods/web/exec/x": false,
	} {
		require.Equal(t, want, proxy.Connects(path), path)
	}
}

// dialSocket opens the WebSocket of an exec in the pod "web". The agent speaks only SPDY.
func dialSocket(t *testing.T, f *front, command string) *websocket.Conn {
	t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io"}}
	url := "ws" + strings.TrimPrefix(f.url, "http") + pods + "/web/exec?container=main&stdin=true&stdout=true&command=" +
		command
	conn, res, err := dialer.DialContext(t.Context(), url, nil)
	require.NoError(t, err)
	_ = res.Body.Close()
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	return conn
}

// broken reads until the connection ends.
func broken(conn *websocket.Conn) error {
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			return err
		}
	}
}

func TestTranslate_EndsAClientThatBreaksTheProtocol(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(*websocket.Conn) error{
		"text":  func(c *websocket.Conn) error { return c.WriteMessage(websocket.TextMessage, []byte("hello")) },
		"empty": func(c *websocket.Conn) error { return c.WriteMessage(websocket.BinaryMessage, nil) },
		"too long": func(c *websocket.Conn) error {
			_ = c.WriteMessage(websocket.BinaryMessage, make([]byte, 32<<20+1))
			return nil // the server may have hung up before the last byte
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
				oldKubelet(w, r)
				close(ended)
			})
			conn := dialSocket(t, f, "wait")
			_, message, err := conn.ReadMessage()
			require.NoError(t, err)
			require.Equal(t, "\x01waiting", string(message))
			require.NoError(t, send(conn))
			require.Error(t, broken(conn))
			select {
			case <-ended: // the agent is not left behind
			case <-time.After(patience):
				t.Fatal("the agent still waits")
			}
		})
	}
}

func TestServe_EndsWithTheServer(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		oldKubelet(w, r)
		close(ended)
	})
	conn := dialSocket(t, f, "wait")
	_, _, err := conn.ReadMessage()
	require.NoError(t, err)
	f.stop()
	require.Error(t, broken(conn))
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the agent still waits")
	}
}

func TestStreams_FailIfTheAgentRejectsTheUpgrade(t *testing.T) {
	t.Parallel()
	f := withAgent(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	f.get(pods+"/web/portforward", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-Websocket-Version", "13",
		"Sec-Websocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-Websocket-Protocol", "SPDY/3.1+portforward.k8s.io").
		refused(http.StatusForbidden, metav1.StatusReasonForbidden, "no")
	f.do(http.MethodPost, pods+"/web/portforward").refused(http.StatusBadRequest, metav1.StatusReasonBadRequest,
		"Upgrade request required")
}
