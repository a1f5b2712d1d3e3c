package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	portforwardconst "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

func exitCode(e exec.CodeExitError) string { return strconv.Itoa(e.ExitStatus()) }

// tunnel answers the WebSocket of a port-forward, in which the client speaks SPDY, and passes what is in it to an agent that
// knows no WebSockets.
func (s *Server) tunnel(w http.ResponseWriter, r *request, to *url.URL, node string) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.drain, cancel)()
	agent, err := s.upgradeToSPDY(ctx, to, node, r.name)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Close() }()
	ws, err := s.accept(w, r, portforwardconst.WebsocketsSPDYTunnelingPortForwardV1)
	if err != nil {
		return nil // it has been told
	}
	client := portforward.NewTunnelingConnection("tunnel", ws)
	defer func() { _ = client.Close() }()
	done := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		done <- struct{}{}
	}
	go pass(agent, client)
	go pass(client, agent)
	// SPDY closes its streams itself: a connection that has ended on one side is of no use on the other.
	left := 2
	select {
	case <-ctx.Done():
	case <-done:
		left--
	}
	_, _ = agent.Close(), client.Close()
	for range left {
		<-done
	}
	return nil
}

// upgradeToSPDY asks an agent to speak SPDY on a new connection, which is then returned.
func (s *Server) upgradeToSPDY(ctx context.Context, to *url.URL, node, pod string) (io.ReadWriteCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	req.Header.Set(httpstream.HeaderProtocolVersion, portforwardconst.PortForwardV1Name)
	req.Header.Set(nodeHeader, node)
	res, err := s.backends.kubelets.RoundTrip(req)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("error dialing backend: %w", err))
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		if conn, ok := res.Body.(io.ReadWriteCloser); ok {
			return conn, nil
		}
	}
	if err := backendRefusal(res, http.MethodPost, corev1.Resource("pods/portforward"), pod); err != nil {
		return nil, err
	}
	_ = res.Body.Close()
	return nil, apierrors.NewInternalError(fmt.Errorf("unable to upgrade the connection to the agent: %s", res.Status))
}
