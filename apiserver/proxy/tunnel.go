package proxy

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

// tunnel terminates the WebSocket of a port-forward, and copies its content, which is SPDY, to and from an agent that
// does not speak WebSocket.
func (px *Proxy) tunnel(w http.ResponseWriter, r *Request, target *url.URL, node string) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(px.drain, cancel)()
	agent, err := px.upgradeToSPDY(ctx, target, node, r.Name)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Close() }()
	ws, err := px.accept(w, r, portforwardconst.WebsocketsSPDYTunnelingPortForwardV1)
	if err != nil {
		return nil // accept has responded
	}
	client := portforward.NewTunnelingConnection("tunnel", ws)
	defer func() { _ = client.Close() }()
	done := make(chan struct{}, 2)
	pass := func(dst io.Writer, src io.Reader) {
		_, _ = io.Copy(dst, src)
		done <- struct{}{}
	}
	go pass(agent, client)
	go pass(client, agent)
	// SPDY closes its streams itself: when one side's connection has ended, the other's is useless.
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

// upgradeToSPDY upgrades a new connection to an agent to SPDY and returns it.
func (px *Proxy) upgradeToSPDY(ctx context.Context, target *url.URL, node, pod string) (io.ReadWriteCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	req.Header.Set(httpstream.HeaderProtocolVersion, portforwardconst.PortForwardV1Name)
	req.Header.Set(nodeHeader, node)
	res, err := px.kubelets.RoundTrip(req)
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
