package kubectllite

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// streamServer is a fake server with one pod, web-0. This machine is its container: commands run in a local shell.
type streamServer struct {
	*fakeServer
	onlySPDY bool // like servers before 1.30
	running  sync.WaitGroup
	mu       sync.Mutex
	used     []string // the protocols of the sessions
	sizes    []string // the sizes of the terminal that the client has sent
}

func newStreamServer(t *testing.T) *streamServer {
	t.Helper()
	s := &streamServer{fakeServer: newFakeServer(t)}
	t.Cleanup(s.running.Wait)
	s.fakeServer.mu.Lock()
	defer s.fakeServer.mu.Unlock()
	s.objects["/api/v1/namespaces/default/pods/web-0"] = map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "web-0", "namespace": "default", "uid": "u", "resourceVersion": "1"},
		"spec": map[string]any{"nodeName": "n",
			"containers": []any{map[string]any{"name": "c",
				"ports": []any{map[string]any{"name": "http", "containerPort": int64(80)}}},
				map[string]any{"name": "side"}}},
		"status": map[string]any{"phase": "Running"},
	}
	s.streams = s.serve
	return s
}

// protocols returns the protocols of the sessions so far.
func (s *streamServer) protocols() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (s *streamServer) note(protocol string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = append(s.used, protocol)
}

// serve answers the subresources that are streams, and reports whether the request was for one.
func (s *streamServer) serve(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case strings.HasSuffix(r.URL.Path, "/web-0/exec"), strings.HasSuffix(r.URL.Path, "/web-0/attach"):
		command := r.URL.Query()["command"]
		if len(command) == 0 {
			command = []string{"cat"} // the process that attach connects to
		}
		if websocket.IsWebSocketUpgrade(r) && !s.onlySPDY {
			s.overWebSocket(w, r, command)
			return true
		}
		s.overSPDY(w, r, command)
	case strings.HasSuffix(r.URL.Path, "/web-0/portforward"):
		s.forwardSPDY(w, r)
	default:
		return false
	}
	return true
}

// execute runs a command and returns the Status that ends a session.
func execute(command []string, stdin io.Reader, stdout, stderr io.Writer) metav1.Status {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if stdin != nil {
		pipe, err := cmd.StdinPipe()
		if err == nil {
			go func() { // ends when the session does: its reader is closed then
				_, _ = io.Copy(pipe, stdin)
				_ = pipe.Close()
			}()
		}
	}
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &ended):
		return metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode",
			Message: "command terminated with non-zero exit code",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode",
				Message: strconv.Itoa(ended.ExitCode())}}}}
	}
	return metav1.Status{Status: metav1.StatusFailure, Message: err.Error(), Reason: metav1.StatusReasonInternalError}
}

// channelWriter writes to one channel of a v5.channel.k8s.io session.
type channelWriter struct {
	mu      *sync.Mutex
	conn    *websocket.Conn
	channel byte
}

func (c channelWriter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(p), c.conn.WriteMessage(websocket.BinaryMessage, append([]byte{c.channel}, p...))
}

func (s *streamServer) overWebSocket(w http.ResponseWriter, r *http.Request, command []string) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close() //nolint:errcheck // the session is over
	s.note(conn.Subprotocol())
	var mu sync.Mutex
	stdin, toStdin := io.Pipe()
	s.running.Go(func() { s.readChannels(conn, toStdin) })
	var in io.Reader
	if r.URL.Query().Get("stdin") != "" {
		in = stdin
	}
	status := execute(command, in, channelWriter{&mu, conn, 1}, channelWriter{&mu, conn, 2})
	text, _ := json.Marshal(status)
	_, _ = channelWriter{&mu, conn, 3}.Write(text)
	mu.Lock()
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
	mu.Unlock()
	_ = stdin.Close()
}

// readChannels reads the client's channels: 0 is standard input, 4 the terminal's size, 255 the end of a channel.
func (s *streamServer) readChannels(conn *websocket.Conn, stdin *io.PipeWriter) {
	defer stdin.Close() //nolint:errcheck // always nil
	for {
		_, message, err := conn.ReadMessage()
		if err != nil {
			return
		}
		switch {
		case len(message) > 1 && message[0] == 0:
			_, _ = stdin.Write(message[1:])
		case len(message) > 1 && message[0] == 4:
			s.mu.Lock()
			s.sizes = append(s.sizes, string(message[1:]))
			s.mu.Unlock()
		case len(message) == 2 && message[0] == 255 && message[1] == 0:
			_ = stdin.Close()
		}
	}
}

func (s *streamServer) overSPDY(w http.ResponseWriter, r *http.Request, command []string) {
	if !httpstream.IsUpgradeRequest(r) || websocket.IsWebSocketUpgrade(r) {
		http.Error(w, "no WebSockets here", http.StatusBadRequest)
		return
	}
	protocol, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"})
	if err != nil {
		return
	}
	count := 1
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		if r.URL.Query().Get(name) != "" {
			count++
		}
	}
	arrived := make(chan httpstream.Stream, count)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		arrived <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close() //nolint:errcheck // the session is over
	s.note(protocol)
	streams := map[string]httpstream.Stream{}
	for range count {
		stream := <-arrived
		streams[stream.Headers().Get(corev1.StreamType)] = stream
	}
	var in io.Reader
	if stdin := streams[corev1.StreamTypeStdin]; stdin != nil {
		in = stdin
	}
	out, errOut := io.Discard, io.Discard
	if stream := streams[corev1.StreamTypeStdout]; stream != nil {
		out = stream
	}
	if stream := streams[corev1.StreamTypeStderr]; stream != nil {
		errOut = stream
	}
	status := execute(command, in, out, errOut)
	_ = json.NewEncoder(streams[corev1.StreamTypeError]).Encode(status)
}

// forwardSPDY echoes all data in capital letters.
func (s *streamServer) forwardSPDY(w http.ResponseWriter, r *http.Request) {
	if !httpstream.IsUpgradeRequest(r) || websocket.IsWebSocketUpgrade(r) {
		http.Error(w, "no WebSockets here", http.StatusBadRequest)
		return
	}
	protocol, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"})
	if err != nil {
		return
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(stream httpstream.Stream, accepted <-chan struct{}) error {
			s.running.Go(func() {
				<-accepted
				if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
					_ = stream.Close()
					return
				}
				text, _ := io.ReadAll(stream)
				_, _ = stream.Write([]byte(strings.ToUpper(string(text))))
				_ = stream.Close()
			})
			return nil
		})
	if conn == nil {
		return
	}
	s.note(protocol)
	<-conn.CloseChan()
}
