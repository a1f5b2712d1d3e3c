// Package proxytest has a node's agent for tests of requests that are forwarded to agents.
package proxytest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	portforwardconst "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
)

// PodIP is an address that no machine has. Connections to any of its ports reach the agent.
const PodIP = "192.0.2.77"

// Client is the name in the certificate that the API server shows to agents.
const Client = "kube-apiserver-kubelet-client"

// Serve serves an agent on a port of this machine until the test ends. With the options, all connections to PodIP reach
// it.
func Serve(t *testing.T, agent http.HandlerFunc) (port uint16, o proxy.KubeletOptions) {
	t.Helper()
	ca, err := pki.NewCA()
	require.NoError(t, err)
	serving, err := ca.Server("127.0.0.1")
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(agent)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	listening := netip.MustParseAddrPort(server.Listener.Addr().String())
	cert, key, err := ca.Client(Client, "system:masters")
	require.NoError(t, err)
	client, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	return listening.Port(), proxy.KubeletOptions{
		CAs: ca.Pool(), Certificate: &client, AddressTypes: []corev1.NodeAddressType{corev1.NodeInternalIP},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasPrefix(address, PodIP+":") {
				address = listening.String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}
}

// Kubelet serves as a node's agent, as the API server sees one: its containers write the request that they received,
// and echo their input.
func Kubelet(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(r.URL.Path, "/")
	switch {
	case len(r.TLS.PeerCertificates) == 0 && path[1] != "pod":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Header.Get("Authorization") != "":
		http.Error(w, "the agent must not receive this header", http.StatusTeapot)
	case path[1] == "containerLogs" && path[4] == "crashed":
		http.Error(w, `container "crashed" in pod "web" is waiting to start`, http.StatusBadRequest)
	case path[1] == "exec" || path[1] == "attach":
		Stream(w, r)
	case path[1] == "portForward":
		Forward(w, r)
	case path[1] == "moved":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	default:
		client := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			client = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		fmt.Fprintf(w, "%s %s for %s", r.Method, r.URL.RequestURI(), client)
	}
}

// Stream serves an exec, over WebSocket or SPDY: it sends back the command and the input.
func Stream(w http.ResponseWriter, r *http.Request) {
	command := strings.Join(r.URL.Query()["command"], " ") + ":"
	if websocket.IsWebSocketUpgrade(r) {
		upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		const stdin, stdout, status, closed = 0, 1, 3, 255
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{stdout}, command...))
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
	streams, conn := AcceptSPDY(w, r, "v4.channel.k8s.io")
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
	_, _ = io.WriteString(byType["stdout"], command)
	_, _ = io.Copy(byType["stdout"], byType["stdin"])
	_, _ = io.WriteString(byType["error"], `{"status":"Success"}`)
	_ = byType["stdout"].Close()
	_ = byType["error"].Close()
	<-conn.CloseChan()
}

// Forward serves a port-forward, over WebSocket or SPDY: it echoes the data that is sent to any port.
func Forward(w http.ResponseWriter, r *http.Request) {
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

// AcceptSPDY begins to speak SPDY with a client; conn is nil if the upgrade failed.
func AcceptSPDY(w http.ResponseWriter, r *http.Request, protocols ...string) (
	streams chan httpstream.Stream, conn httpstream.Connection) {
	if _, err := httpstream.Handshake(r, w, protocols); err != nil {
		return nil, nil
	}
	streams = make(chan httpstream.Stream, 5)
	return streams, spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(s httpstream.Stream, _ <-chan struct{}) error {
			streams <- s
			return nil
		})
}
