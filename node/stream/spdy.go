package stream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// idleTimeout closes an idle connection: the kubelet's streamingConnectionIdleTimeout.
const idleTimeout = 4 * time.Hour

// openSPDY upgrades a request and waits for the streams that the client announced. A client that names no version of
// the protocol speaks version 1.
func openSPDY(w http.ResponseWriter, r *http.Request, o Options) (*client, error) {
	protocol, err := httpstream.Handshake(r, w, remotecommand.SupportedStreamingProtocols)
	if err != nil {
		return nil, err
	}
	requested := map[string]bool{
		corev1.StreamTypeError: true, corev1.StreamTypeStdin: o.Stdin, corev1.StreamTypeStdout: o.Stdout,
		corev1.StreamTypeStderr: o.Stderr,
		corev1.StreamTypeResize: o.TTY && (protocol == remotecommand.StreamProtocolV4Name ||
			protocol == remotecommand.StreamProtocolV3Name),
	}
	arriving := make(chan httpstream.Stream, len(requested))
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(s httpstream.Stream, replySent <-chan struct{}) error {
			if !requested[s.Headers().Get(corev1.StreamType)] {
				return fmt.Errorf("invalid stream type %q", s.Headers().Get(corev1.StreamType))
			}
			go func() { // a write before the reply was sent could overtake it
				<-replySent
				select {
				case arriving <- s:
				case <-r.Context().Done():
				}
			}()
			return nil
		})
	if conn == nil {
		return nil, errors.New("the upgrade failed")
	}
	conn.SetIdleTimeout(idleTimeout)
	ctx, cancel := context.WithTimeout(r.Context(), remotecommand.DefaultStreamCreationTimeout)
	defer cancel()
	streams, err := await(ctx, conn, arriving, requested)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return spdyClient(conn, streams, protocol), nil
}

// await collects the requested streams.
func await(ctx context.Context, conn httpstream.Connection, arriving <-chan httpstream.Stream,
	requested map[string]bool) (map[string]httpstream.Stream, error) {
	missing := 0
	for _, isRequested := range requested {
		if isRequested {
			missing++
		}
	}
	streams := map[string]httpstream.Stream{}
	for len(streams) < missing {
		select {
		case s := <-arriving:
			streams[s.Headers().Get(corev1.StreamType)] = s
		case <-ctx.Done():
			return nil, errors.New("timed out waiting for client to create streams")
		case <-conn.CloseChan():
			return nil, errors.New("the client left")
		}
	}
	return streams, nil
}

func spdyClient(conn httpstream.Connection, streams map[string]httpstream.Stream, protocol string) *client {
	c := &client{close: func() { _ = conn.Close() }}
	c.gone = func(cancel func()) func() {
		ended := make(chan struct{})
		go func() {
			select {
			case <-conn.CloseChan():
				cancel()
			case <-ended:
			}
		}()
		return func() { close(ended) }
	}
	if s := streams[corev1.StreamTypeStdin]; s != nil {
		c.Stdin = s
	}
	if s := streams[corev1.StreamTypeStdout]; s != nil {
		c.Stdout = s
	}
	if s := streams[corev1.StreamTypeStderr]; s != nil {
		c.Stderr = s
	}
	if s := streams[corev1.StreamTypeResize]; s != nil {
		c.resize = s
	}
	c.status = func(status *metav1.Status) error {
		for _, name := range []string{corev1.StreamTypeStdout, corev1.StreamTypeStderr} {
			if s := streams[name]; s != nil {
				_ = s.Close()
			}
		}
		s := streams[corev1.StreamTypeError]
		err := writeStatus(s, protocol == remotecommand.StreamProtocolV4Name, status)
		return errors.Join(err, s.Close())
	}
	return c
}
