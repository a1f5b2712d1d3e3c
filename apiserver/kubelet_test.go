package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	dialed "k8s.io/apimachinery/pkg/util/httpstream"
	portforwardconst "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	spdytransport "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// kubelet is a node's agent as far as the API server sees one: containers that say what they
// were asked, and send back what they are sent.
type kubelet struct{ t *testing.T }

func (k kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(r.URL.Path, "/")
	switch {
	case len(r.TLS.PeerCertificates) == 0 && path[1] != "pod":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Header.Get("Authorization") != "":
		http.Error(w, "this is not for me to see", http.StatusTeapot)
	case path[1] == "containerLogs" && path[4] == "crashed":
		http.Error(w, `container "crashed" in pod "web" is waiting to start`, http.StatusBadRequest)
	case path[1] == "exec" || path[1] == "attach":
		k.stream(w, r)
	case path[1] == "portForward":
		k.forward(w, r)
	case path[1] == "moved":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	default:
		who := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		fmt.Fprintf(w, "%s %s for %s", r.Method, r.URL.RequestURI(), who)
	}
}

// stream answers an exec: what comes in goes out again, after the command.
func (k kubelet) stream(w http.ResponseWriter, r *http.Request) {
	said := strings.Join(r.URL.Query()["command"], " ") + ":"
	if websocket.IsWebSocketUpgrade(r) {
		upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		const stdin, stdout, status, closed = 0, 1, 3, 255
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{stdout}, said...))
		for {
			_, message, err := conn.ReadMessage()
			if err != nil || len(message) == 2 && message[0] == closed {
				break
			}
			if message[0] == stdin {
				_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{stdout}, message[1:]...))
			}
		}
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{status}, `{"status":"Success"}`...))
		_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
		return
	}
	streams, conn := acceptSPDY(w, r, "v4.channel.k8s.io")
	if conn == nil {
		return
	}
	defer conn.Close()
	byType := map[string]httpstream.Stream{}
	for len(byType) < 3 {
		select {
		case s := <-streams:
			byType[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	_, _ = io.WriteString(byType["stdout"], said)
	_, _ = io.Copy(byType["stdout"], byType["stdin"])
	_, _ = io.WriteString(byType["error"], `{"status":"Success"}`)
	_ = byType["stdout"].Close()
	_ = byType["error"].Close()
	<-conn.CloseChan()
}

// forward sends back what comes to any port.
func (k kubelet) forward(w http.ResponseWriter, r *http.Request) {
	echo := func(s httpstream.Stream, _ <-chan struct{}) error {
		go func() {
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				_, _ = io.Copy(s, s)
			}
			_ = s.Close()
		}()
		return nil
	}
	if websocket.IsWebSocketUpgrade(r) {
		upgrader := websocket.Upgrader{Subprotocols: []string{portforwardconst.WebsocketsSPDYTunnelingPortForwardV1}}
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		conn, err := spdy.NewServerConnection(portforward.NewTunnelingConnection("kubelet", ws), echo)
		if err != nil {
			return
		}
		<-conn.CloseChan()
		_ = conn.Close()
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{portforwardconst.PortForwardV1Name}); err != nil {
		return
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, echo)
	if conn == nil {
		return
	}
	<-conn.CloseChan()
	_ = conn.Close()
}

// podIP is an address that no machine has; what is dialed there comes to the kubelet.
const podIP = "192.0.2.77"

// withKubelet is an API server with the pod "web" on a node whose agent is a kubelet.
func withKubelet(t *testing.T) *server { return withAgent(t, kubelet{t}.ServeHTTP) }

// withAgent is the same with another agent.
func withAgent(t *testing.T, serve http.HandlerFunc) *server {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	serving, err := ca.Server("127.0.0.1")
	require.NoError(t, err)
	agent := httptest.NewUnstartedServer(serve)
	agent.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert}
	agent.StartTLS()
	t.Cleanup(agent.Close)
	at := netip.MustParseAddrPort(agent.Listener.Addr().String())
	cert, key, err := ca.Client("kube-apiserver-kubelet-client", "system:masters")
	require.NoError(t, err)
	client, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	s := assemble(t, api.Builtin(), apiserver.Options{Kubelet: apiserver.KubeletOptions{
		CAs: ca.Pool(), Certificate: &client, AddressTypes: []corev1.NodeAddressType{corev1.NodeInternalIP},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, podIP+":") {
				address = at.String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}})
	s.create("/api/v1/namespaces/default/serviceaccounts", m{"metadata": m{"name": "default"}})
	s.create(nodes, m{"metadata": m{"name": "n"}, "status": m{
		"addresses":       []any{m{"type": "Hostname", "address": "nowhere.invalid"}, m{"type": "InternalIP", "address": "127.0.0.1"}},
		"daemonEndpoints": m{"kubeletEndpoint": m{"Port": at.Port()}},
	}})
	s.create(nodes, m{"metadata": m{"name": "mute"}, "status": m{"addresses": []any{m{"type": "InternalIP", "address": "127.0.0.1"}}}})
	onNode := func(name, node string, containers ...any) {
		p := pod(name)
		p["spec"].(m)["nodeName"] = node
		if len(containers) > 0 {
			p["spec"].(m)["containers"] = containers
		}
		s.create(pods, p)
	}
	onNode("web", "n", m{"name": "main", "image": "i", "ports": []any{m{"containerPort": 8443}}}, m{"name": "crashed", "image": "i"})
	onNode("alone", "n")
	onNode("far", "mute")
	onNode("unplaced", "")
	s.patch(pods+"/web/status", mergePatch, m{"status": m{"podIP": podIP, "podIPs": []any{m{"ip": podIP}}}}).ok(http.StatusOK)
	return s.server
}

func TestPodLog(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	got := s.get(pods+"/web/log?container=main&tailLines=5&follow=true&limitBytes=9&sinceTime=2026-01-02T03:04:05Z&previous=true", "Accept", "application/json").ok(http.StatusOK)
	require.Equal(t, "GET /containerLogs/default/web/main?follow=true&limitBytes=9&previous=true&sinceTime=2026-01-02T03%3A04%3A05Z&tailLines=5 for kube-apiserver-kubelet-client", string(got.body))
	require.Equal(t, "text/plain", got.header.Get("Content-Type"))
	require.Contains(t, string(s.get(pods+"/alone/log").ok(http.StatusOK).body), "/containerLogs/default/alone/main")
	s.get(pods + "/unplaced/log").ok(http.StatusNoContent)

	for path, want := range map[string]struct {
		code   int
		reason metav1.StatusReason
		words  string
	}{
		"/web/log":                     {400, metav1.StatusReasonBadRequest, "a container name must be specified for pod web, choose one of: [main crashed]"},
		"/web/log?container=other":     {400, metav1.StatusReasonBadRequest, "container other is not valid for pod web"},
		"/web/log?container=crashed":   {400, metav1.StatusReasonBadRequest, `container "crashed" in pod "web" is waiting to start`},
		"/none/log":                    {404, metav1.StatusReasonNotFound, `pods "none" not found`},
		"/alone/log?tailLines=-1":      {422, metav1.StatusReasonInvalid, "PodLogOptions \"alone\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"},
		"/alone/log?limitBytes=0":      {422, metav1.StatusReasonInvalid, "limitBytes: Invalid value: 0: must be greater than 0"},
		"/alone/log?sinceSeconds=many": {400, metav1.StatusReasonBadRequest, "sinceSeconds"},
		"/far/log":                     {502, "BadGateway", `the agent of node "mute" does not serve`},
		"/alone/exec?command=a":        {400, metav1.StatusReasonBadRequest, "Upgrade request required"},
		"/unplaced/exec?command=a":     {400, metav1.StatusReasonBadRequest, "pod unplaced does not have a host assigned"},
		"/unplaced/portforward":        {400, metav1.StatusReasonBadRequest, "pod unplaced does not have a host assigned"},
		"/alone/proxy/":                {400, metav1.StatusReasonBadRequest, "address not allowed"},
	} {
		s.get(pods+path).refused(want.code, want.reason, want.words)
	}
	s.do(http.MethodPost, pods+"/alone/log", nil).refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "")
}

func TestPodExec(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	at := s.typed().CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("web").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "main", Command: []string{"cat", "-"}, Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	overSPDY, err := remotecommand.NewSPDYExecutor(s.config, http.MethodPost, at)
	require.NoError(t, err)
	overWebSocket, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, at.String())
	require.NoError(t, err)
	for name, executor := range map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var out bytes.Buffer
			require.NoError(t, executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out}))
			require.Equal(t, "cat -:hello", out.String())
		})
	}
}

func TestPodPortForward(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	at, err := url.Parse(s.config.Host + pods + "/web/portforward")
	require.NoError(t, err)
	transport, upgrader, err := spdytransport.RoundTripperFor(s.config)
	require.NoError(t, err)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(at, s.config)
	require.NoError(t, err)
	overSPDY := spdytransport.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at)
	for name, dialer := range map[string]dialed.Dialer{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		t.Run(name, func(t *testing.T) {
			port, stop := forwarding(t, dialer)
			require.Equal(t, "hello", string(echoed(t, port, []byte("hello"))))
			stop()
		})
	}
}

// forwarding forwards a port of this machine until stop is called.
func forwarding(t *testing.T, dialer dialed.Dialer) (port uint16, stop func()) {
	t.Helper()
	stopped, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stopped, ready, io.Discard, io.Discard)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(t, err)
	}
	ports, err := forwarder.GetPorts()
	require.NoError(t, err)
	return ports[0].Local, func() {
		close(stopped)
		<-ended
	}
}

// echoed is what comes back from a forwarded port of what is sent there, nil if the connection breaks.
func echoed(t *testing.T, port uint16, sent []byte) []byte {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if !assert.NoError(t, err) {
		return nil
	}
	defer conn.Close()
	go func() { _, _ = conn.Write(sent) }()
	back := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, back); !assert.NoError(t, err) {
		return nil
	}
	return back
}

func TestProxy(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	s.create("/api/v1/namespaces/default/services", m{"metadata": m{"name": "svc"}, "spec": m{"ports": []any{m{"name": "https", "port": 443}}}})
	s.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", m{
		"metadata": m{"name": "svc", "labels": m{"kubernetes.io/service-name": "svc"}}, "addressType": "IPv4",
		"ports": []any{m{"name": "https", "port": 8443}},
		"endpoints": []any{
			m{"addresses": []any{podIP}, "targetRef": m{"kind": "Pod", "name": "web", "namespace": "default"}},
			m{"addresses": []any{"192.0.2.1"}}, // no pod's: whoever wrote it may not point the server there
		},
	})
	body := func(method, path string) string {
		t.Helper()
		return strings.TrimSuffix(string(s.do(method, path, nil).ok(http.StatusOK).body), " for nobody")
	}
	require.Equal(t, "GET /pod/a%20b?c=d", body(http.MethodGet, pods+"/https:web:8443/proxy/pod/a%20b?c=d"))
	require.Equal(t, "GET /pod/", body(http.MethodGet, pods+"/https:web:/proxy/pod/"))
	require.Equal(t, "DELETE /pod/x", body(http.MethodDelete, pods+"/https:web:8443/proxy/pod/x"))
	require.Equal(t, "PUT /pod/x", body(http.MethodPut, pods+"/https:web:8443/proxy/pod/x"))
	for _, port := range []string{"443", "https"} {
		require.Equal(t, "POST /pod/y", body(http.MethodPost, "/api/v1/namespaces/default/services/https:svc:"+port+"/proxy/pod/y"))
	}
	require.Equal(t, "GET /healthz for kube-apiserver-kubelet-client", body(http.MethodGet, nodes+"/n/proxy/healthz"))
	require.Equal(t, nodes+"/n/proxy/elsewhere", s.get(nodes+"/n/proxy/moved").ok(http.StatusFound).header.Get("Location"))
	require.Equal(t, nodes+"/n/proxy/?a=b", s.get(nodes+"/n/proxy?a=b").ok(http.StatusMovedPermanently).header.Get("Location"))

	unavailable := metav1.StatusReasonServiceUnavailable
	s.get("/api/v1/namespaces/default/services/svc:80/proxy/").refused(503, unavailable, `no service port 80 found for service "svc"`)
	s.get("/api/v1/namespaces/default/services/svc:other/proxy/").refused(503, unavailable, `no endpoints available for service "svc"`)
	s.get("/api/v1/namespaces/default/services/none/proxy/").refused(404, metav1.StatusReasonNotFound, `services "none" not found`)
	s.get(pods+"/a:b:c:d/proxy/").refused(400, metav1.StatusReasonBadRequest, `invalid pod request "a:b:c:d"`)
	s.get(nodes+"/n:10/proxy/").refused(400, metav1.StatusReasonBadRequest, "address not allowed")
	s.get(nodes+"/mute/proxy/").refused(502, "BadGateway", `the agent of node "mute" does not serve`)
	s.get(pods+"/web/log/x").refused(404, metav1.StatusReasonNotFound, "")
}

// acceptSPDY begins to speak SPDY with a client; conn is nil where that came to nothing.
func acceptSPDY(w http.ResponseWriter, r *http.Request, protocols ...string) (streams chan httpstream.Stream, conn httpstream.Connection) {
	if _, err := httpstream.Handshake(r, w, protocols); err != nil {
		return nil, nil
	}
	streams = make(chan httpstream.Stream, 5)
	return streams, spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
}
