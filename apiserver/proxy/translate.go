package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	streamproto "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// kubectl speaks WebSocket, kubelets before v1.36 only SPDY. If a node does not declare that its agent speaks WebSocket
// too, the server does as kube-apiserver: it terminates the client's WebSocket and speaks SPDY to the agent (KEP-4006,
// and the feature ExtendWebSocketsToKubelet).

// speaksWebSocket is the feature that a node declares if WebSockets may be passed to its agent.
const speaksWebSocket = "ExtendWebSocketsToKubelet"

// The channels of v5.channel.k8s.io: the first byte of each message.
const (
	channelStdin  = streamproto.StreamStdIn
	channelStdout = streamproto.StreamStdOut
	channelStderr = streamproto.StreamStdErr
	channelError  = streamproto.StreamErr
	channelResize = streamproto.StreamResize
	channelClose  = streamproto.StreamClose
)

const (
	// socketPing is the interval of pings to the peer of a WebSocket.
	socketPing = 5 * time.Second
	// socketPatience limits the time that the peer may be silent, or that a write to it may take.
	socketPatience = time.Minute
	// maxSocketMessage is the largest size of one message, in bytes.
	maxSocketMessage = 32 << 20
	// maxResizes is the number of terminal sizes that are queued; older ones are useless.
	maxResizes = 1
)

// offers reports whether a WebSocket's client offers a protocol.
func offers(r *http.Request, protocol string) bool {
	return websocket.IsWebSocketUpgrade(r) && slices.Contains(websocket.Subprotocols(r), protocol)
}

// declares reports whether a node declares a feature.
func (px *Proxy) declares(ctx context.Context, nodeName, feature string) (bool, error) {
	obj, err := px.objects.Object(ctx, nodeKind, "", nodeName)
	if err != nil {
		return false, err
	}
	return slices.Contains(obj.(*corev1.Node).Status.DeclaredFeatures, feature), nil
}

// accept upgrades the connection to a WebSocket. No other response is possible after that.
func (px *Proxy) accept(w http.ResponseWriter, r *Request, protocol string) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{protocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // credentials are not a browser's to send by itself
		Error: func(w http.ResponseWriter, _ *http.Request, _ int, reason error) {
			r.Fail(r.Request, apierrors.NewBadRequest(reason.Error()))
		},
	}
	conn, err := upgrader.Upgrade(w, r.Request, nil)
	if err != nil {
		return nil, err
	}
	r.Switched()
	return conn, nil
}

// translate serves the WebSocket of an exec or an attach, and speaks SPDY with the agent. streams are the parameters of
// the agent.
func (px *Proxy) translate(w http.ResponseWriter, r *Request, target *url.URL, node string, streams url.Values) error {
	upstream, err := px.spdyExecutor(target, node)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	conn, err := px.accept(w, r, streamproto.StreamProtocolV5Name)
	if err != nil {
		return nil // accept has responded
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(px.drain, cancel)()
	socket := newSocket(conn, cancel)
	options := remotecommand.StreamOptions{Tty: streams.Has("tty"), TerminalSizeQueue: socket}
	if streams.Has("input") {
		options.Stdin = socket.stdin
	}
	if streams.Has("output") {
		options.Stdout = socket.channel(channelStdout)
	}
	if streams.Has("error") && !options.Tty {
		options.Stderr = socket.channel(channelStderr)
	}
	socket.start(ctx)
	socket.end(ctx, upstream.StreamWithContext(ctx, options))
	return nil
}

// spdyExecutor returns an Executor that runs commands at an agent.
func (px *Proxy) spdyExecutor(target *url.URL, node string) (remotecommand.Executor, error) {
	transport, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: px.kubelets,
		PingPeriod: socketPing})
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutorRejectRedirects(forNode{transport, node}, transport, http.MethodPost, target)
}

// forNode names the node to an agent that serves several.
type forNode struct {
	http.RoundTripper
	node string
}

func (n forNode) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(nodeHeader, n.node)
	return n.RoundTripper.RoundTrip(r)
}

// socket is the client's side of a translated stream. Its streams may be used by several goroutines at once.
type socket struct {
	conn    *websocket.Conn
	cancel  context.CancelFunc
	writing sync.Mutex // serializes messages; gorilla/websocket allows one writer at a time, control messages excepted
	stdin   *io.PipeReader
	toStdin *io.PipeWriter                  // the goroutine that reads messages writes and closes it
	sizes   chan remotecommand.TerminalSize // the same goroutine sends and closes it
	running sync.WaitGroup                  // the two goroutines of start
}

// newSocket returns a socket that calls cancel when it ends.
func newSocket(conn *websocket.Conn, cancel context.CancelFunc) *socket {
	s := &socket{conn: conn, cancel: cancel, sizes: make(chan remotecommand.TerminalSize, maxResizes)}
	s.stdin, s.toStdin = io.Pipe()
	return s
}

// start begins to read the client's messages and to ping it.
func (s *socket) start(ctx context.Context) {
	s.conn.SetReadLimit(maxSocketMessage)
	alive := func(string) error { return s.conn.SetReadDeadline(time.Now().Add(socketPatience)) }
	_ = alive("")
	s.conn.SetPongHandler(alive)
	s.running.Go(func() {
		defer s.cancel() // the client is gone, or does not keep to the protocol
		defer close(s.sizes)
		_ = s.toStdin.CloseWithError(s.read())
	})
	s.running.Go(func() {
		ticker := time.NewTicker(socketPing)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				if s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(socketPatience)) != nil {
					s.cancel()
					return
				}
			}
		}
	})
}

// read dispatches messages until there are no more. The reader of stdin gets its error.
func (s *socket) read() error {
	for {
		kind, message, err := s.conn.ReadMessage()
		if err != nil {
			return err
		}
		if kind != websocket.BinaryMessage || len(message) == 0 {
			return errors.New("not a message of " + streamproto.StreamProtocolV5Name)
		}
		channel, data := message[0], message[1:]
		switch {
		case channel == channelStdin:
			// When the command reads no more, the rest is useless, but the client may go on.
			_, _ = s.toStdin.Write(data)
		case channel == channelResize:
			s.resize(data)
		case channel == channelClose && len(data) == 1 && data[0] == channelStdin:
			_ = s.toStdin.Close()
		}
	}
}

// resize queues the newest size, and drops an older one that was not taken.
func (s *socket) resize(data []byte) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	for {
		var size remotecommand.TerminalSize
		if decoder.Decode(&size) != nil {
			return
		}
		for sent := false; !sent; {
			select {
			case s.sizes <- size:
				sent = true
			default:
				select {
				case <-s.sizes:
				default:
				}
			}
		}
	}
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *socket) Next() *remotecommand.TerminalSize {
	size, ok := <-s.sizes
	if !ok {
		return nil
	}
	return &size
}

// channelWriter writes to one channel of a socket.
type channelWriter struct {
	socket  *socket
	channel byte
}

func (s *socket) channel(c byte) io.Writer { return channelWriter{s, c} }

func (c channelWriter) Write(p []byte) (int, error) {
	s := c.socket
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(socketPatience))
	if err := s.conn.WriteMessage(websocket.BinaryMessage, append([]byte{c.channel}, p...)); err != nil {
		s.cancel()
		return 0, err
	}
	return len(p), nil
}

// end reports to the client how the stream ended, and waits for the goroutines of start.
func (s *socket) end(ctx context.Context, err error) {
	if ctx.Err() == nil { // the client is still there
		status, _ := json.Marshal(streamStatus(err))
		_, _ = s.channel(channelError).Write(status)
		_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
			time.Now().Add(socketPatience))
	}
	s.cancel()
	_ = s.stdin.Close() // ends a write that is not read
	_ = s.conn.Close()
	s.running.Wait()
}

// streamStatus returns the Status that ends a stream of v5.channel.k8s.io.
func streamStatus(err error) metav1.Status {
	var exit exec.CodeExitError
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit):
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: streamproto.NonZeroExitCodeReason, Message: exit.Error(),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: streamproto.ExitCodeCauseType,
				Message: exitCode(exit)}}},
		}
	case errors.As(err, &status):
		return status.Status()
	}
	return apierrors.NewInternalError(err).Status()
}
