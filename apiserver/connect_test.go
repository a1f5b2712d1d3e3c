package apiserver_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/proxy/proxytest"
)

// The path of requests that are forwarded to a node's agent, a pod or a service. Package proxy tests the forwarded
// requests.

// withKubelet starts an API server with the pod "web" on a node whose agent is a fake kubelet.
func withKubelet(t *testing.T) *server {
	t.Helper()
	return serverWithKubelet(t, apiserver.Options{})
}

func serverWithKubelet(t *testing.T, o apiserver.Options) *server {
	t.Helper()
	port, kubelet := proxytest.Serve(t, proxytest.Kubelet)
	o.Kubelet = kubelet
	s := assemble(t, builtin.Kinds(), o)
	s.create("/api/v1/namespaces/default/serviceaccounts", m{"metadata": m{"name": "default"}})
	s.create(nodes, m{"metadata": m{"name": "n"}, "status": m{
		"addresses": []any{m{"type": "Hostname", "address": "nowhere.invalid"},
			m{"type": "InternalIP", "address": "127.0.0.1"}},
		"daemonEndpoints": m{"kubeletEndpoint": m{"Port": port}},
	}})
	s.create(nodes, m{"metadata": m{"name": "mute"},
		"status": m{"addresses": []any{m{"type": "InternalIP", "address": "127.0.0.1"}}}})
	onNode := func(name, node string, containers ...any) {
		p := pod(name)
		p["spec"].(m)["nodeName"] = node
		if len(containers) > 0 {
			p["spec"].(m)["containers"] = containers
		}
		s.create(pods, p)
	}
	onNode("web", "n", m{"name": "main", "image": "i", "ports": []any{m{"containerPort": 8443}}},
		m{"name": "crashed", "image": "i"})
	onNode("alone", "n")
	onNode("far", "mute")
	onNode("unplaced", "")
	ip := m{"podIP": proxytest.PodIP, "podIPs": []any{m{"ip": proxytest.PodIP}}}
	s.patch(pods+"/web/status", mergePatch, m{"status": ip}).ok(http.StatusOK)
	return s.server
}

func TestConnect_LogsAndTheirRefusals(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	got := s.get(pods+"/web/log?container=main&tailLines=5", "Accept", "application/json").ok(http.StatusOK)
	require.Equal(t, "GET /containerLogs/default/web/main?tailLines=5 for "+proxytest.Client, string(got.body))
	require.Equal(t, "text/plain", got.header.Get("Content-Type"))
	s.get(pods + "/unplaced/log").ok(http.StatusNoContent)
	for path, want := range map[string]struct {
		code   int
		reason metav1.StatusReason
		words  string
	}{
		"/none/log":  {404, metav1.StatusReasonNotFound, `pods "none" not found`},
		"/web/log/x": {404, metav1.StatusReasonNotFound, ""},
		"/web/log": {400, metav1.StatusReasonBadRequest,
			"a container name must be specified for pod web, choose one of: [main crashed]"},
		"/web/log?container=crashed": {400, metav1.StatusReasonBadRequest,
			`container "crashed" in pod "web" is waiting to start`},
		"/alone/log?tailLines=-1": {422, metav1.StatusReasonInvalid,
			"PodLogOptions \"alone\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"},
		"/far/log":              {502, "BadGateway", `the agent of node "mute" does not serve`},
		"/web/exec?container=a": {400, metav1.StatusReasonBadRequest, "container a is not valid for pod web"},
	} {
		s.get(pods+path).refused(want.code, want.reason, want.words)
	}
	s.do(http.MethodPost, pods+"/alone/log", nil).refused(http.StatusMethodNotAllowed,
		metav1.StatusReasonMethodNotAllowed, "")
}

func TestConnect_ExecOverBothUpgrades(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	target := s.typed().CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("web").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "main", Command: []string{"cat", "-"}, Stdin: true,
			Stdout: true}, scheme.ParameterCodec).URL()
	overSPDY, err := remotecommand.NewSPDYExecutor(s.config, http.MethodPost, target)
	require.NoError(t, err)
	overWebSocket, err := remotecommand.NewWebSocketExecutor(s.config, http.MethodGet, target.String())
	require.NoError(t, err)
	for name, executor := range map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var out bytes.Buffer
			require.NoError(t,
				executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"),
					Stdout: &out}))
			require.Equal(t, "cat -:hello", out.String())
		})
	}
}

func TestConnect_Proxies(t *testing.T) {
	t.Parallel()
	s := withKubelet(t)
	s.create("/api/v1/namespaces/default/services",
		m{"metadata": m{"name": "svc"}, "spec": m{"ports": []any{m{"name": "https", "port": 443}}}})
	s.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", m{
		"metadata": m{"name": "svc", "labels": m{"kubernetes.io/service-name": "svc"}}, "addressType": "IPv4",
		"ports": []any{m{"name": "https", "port": 8443}},
		"endpoints": []any{
			m{"addresses": []any{proxytest.PodIP}, "targetRef": m{"kind": "Pod", "name": "web", "namespace": "default"}},
			m{"addresses": []any{"192.0.2.1"}}, // not a pod's: its author must not direct the server there
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
		require.Equal(t, "POST /pod/y", body(http.MethodPost, "/api/v1/namespaces/default/services/https:svc:"+port+
			"/proxy/pod/y"))
	}
	require.Equal(t, "GET /healthz for "+proxytest.Client, body(http.MethodGet, nodes+"/n/proxy/healthz"))
	require.Equal(t, nodes+"/n/proxy/elsewhere",
		s.get(nodes+"/n/proxy/moved").ok(http.StatusFound).header.Get("Location"))
	require.Equal(t, nodes+"/n/proxy/?a=b",
		s.get(nodes+"/n/proxy?a=b").ok(http.StatusMovedPermanently).header.Get("Location"))

	unavailable := metav1.StatusReasonServiceUnavailable
	s.get("/api/v1/namespaces/default/services/svc:80/proxy/").refused(503, unavailable,
		`no service port 80 found for service "svc"`)
	s.get("/api/v1/namespaces/default/services/svc:other/proxy/").refused(503, unavailable,
		`no endpoints available for service "svc"`)
	s.get("/api/v1/namespaces/default/services/none/proxy/").refused(404, metav1.StatusReasonNotFound,
		`services "none" not found`)
	s.get(pods+"/a:b:c:d/proxy/").refused(400, metav1.StatusReasonBadRequest, `invalid pod request "a:b:c:d"`)
	s.get(nodes+"/n:10/proxy/").refused(400, metav1.StatusReasonBadRequest, "address not allowed")
	s.get(nodes+"/mute/proxy/").refused(502, "BadGateway", `the agent of node "mute" does not serve`)
	s.get(pods+"/web/log/x").refused(404, metav1.StatusReasonNotFound, "")
}
