package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dialed "k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	spdytransport "k8s.io/client-go/transport/spdy"
	"k8s.io/kubectl/pkg/scheme"
)

func TestLog_GoesToTheAgentWithItsOptions(t *testing.T) {
	t.Parallel()
	f := withKubelet(t)
	got := f.get(pods+
		"/web/log?container=main&tailLines=5&follow=true&limitBytes=9&sinceTime=2026-01-02T03:04:05Z&previous=true",
		"Accept", "application/json").ok(http.StatusOK)
	require.Equal(t,
		"GET /containerLogs/default/web/main?follow=true&limitBytes=9&previous=true&sinceTime=2026-01-02T03%3A04%3A05Z&tailLines=5 for kube-apiserver-kubelet-client", got.body)
	require.Equal(t, "text/plain", got.header.Get("Content-Type"))
	require.Contains(t, f.get(pods+"/alone/log").ok(http.StatusOK).body, "/containerLogs/default/alone/main")
	f.get(pods + "/unplaced/log").ok(http.StatusNoContent)

	for path, want := range map[string]struct {
		code   int
		reason metav1.StatusReason
		words  string
	}{
		"/web/log": {400, metav1.StatusReasonBadRequest,
			"a container name must be specified for pod web, choose one of: [main crashed]"},
		"/web/log?container=other": {400, metav1.StatusReasonBadRequest,
			"container other is not valid for pod web"},
		"/web/log?container=crashed": {400, metav1.StatusReasonBadRequest,
			`container "crashed" in pod "web" is waiting to start`},
		"/none/log": {404, metav1.StatusReasonNotFound, `pods "none" not found`},
		"/alone/log?tailLines=-1": {422, metav1.StatusReasonInvalid,
			"PodLogOptions \"alone\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"},
		"/alone/log?limitBytes=0": {422, metav1.StatusReasonInvalid,
			"limitBytes: Invalid value: 0: must be greater than 0"},
		"/alone/log?sinceSeconds=many": {400, metav1.StatusReasonBadRequest, "sinceSeconds"},
		"/far/log":                     {502, "BadGateway", `the agent of node "mute" does not serve`},
		"/alone/exec?command=a":        {400, metav1.StatusReasonBadRequest, "Upgrade request required"},
		"/alone/log?sinceSeconds=0": {422, metav1.StatusReasonInvalid,
			"sinceSeconds: Invalid value: 0: must be greater than 0"},
		"/alone/log?sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z": {422, metav1.StatusReasonInvalid,
			"at most one of `sinceTime` or `sinceSeconds` may be specified"},
		"/alone/log?sinceTime=today": {400, metav1.StatusReasonBadRequest, "invalid sinceTime"},
		"/none/exec?command=a":       {404, metav1.StatusReasonNotFound, `pods "none" not found`},
		"/unplaced/exec?command=a": {400, metav1.StatusReasonBadRequest,
			"pod unplaced does not have a host assigned"},
		"/unplaced/portforward": {400, metav1.StatusReasonBadRequest,
			"pod unplaced does not have a host assigned"},
		"/alone/proxy/": {400, metav1.StatusReasonBadRequest, "address not allowed"},
	} {
		f.get(pods+path).refused(want.code, want.reason, want.words)
	}
}

// streamAt returns the URL of a subresource of the pod "web" with its options.
func (f *front) streamAt(subresource string, o runtime.Object) *url.URL {
	f.t.Helper()
	query, err := scheme.ParameterCodec.EncodeParameters(o, corev1.SchemeGroupVersion)
	require.NoError(f.t, err)
	target, err := url.Parse(f.url + pods + "/web/" + subresource + "?" + query.Encode())
	require.NoError(f.t, err)
	return target
}

func TestExec_OverBothUpgrades(t *testing.T) {
	t.Parallel()
	f := withKubelet(t)
	target := f.streamAt("exec", &corev1.PodExecOptions{Container: "main", Command: []string{"cat", "-"}, Stdin: true,
		Stdout: true})
	overSPDY, err := remotecommand.NewSPDYExecutor(f.config, http.MethodPost, target)
	require.NoError(t, err)
	overWebSocket, err := remotecommand.NewWebSocketExecutor(f.config, http.MethodGet, target.String())
	require.NoError(t, err)
	for name, executor := range map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var out bytes.Buffer
			require.NoError(t, executor.StreamWithContext(ctx, remotecommand.StreamOptions{
				Stdin: strings.NewReader("hello"), Stdout: &out}))
			require.Equal(t, "cat -:hello", out.String())
		})
	}
}

func TestPortForward_OverBothUpgrades(t *testing.T) {
	t.Parallel()
	f := withKubelet(t)
	target, err := url.Parse(f.config.Host + pods + "/web/portforward")
	require.NoError(t, err)
	transport, upgrader, err := spdytransport.RoundTripperFor(f.config)
	require.NoError(t, err)
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target, f.config)
	require.NoError(t, err)
	overSPDY := spdytransport.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)
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
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stopped, ready,
		io.Discard, io.Discard)
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

// echoed sends data to a forwarded port, and returns the echo; nil if the connection breaks.
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
