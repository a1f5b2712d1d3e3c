package proxy_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/proxy/proxytest"
)

// oldKubelet serves an agent that speaks only SPDY and rejects WebSockets. An attach runs cat.
func oldKubelet(w http.ResponseWriter, r *http.Request) {
	if websocket.IsWebSocketUpgrade(r) {
		http.Error(w, "this agent knows no WebSockets", http.StatusBadRequest)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/portForward/") {
		proxytest.Forward(w, r)
		return
	}
	streams, conn := proxytest.AcceptSPDY(w, r, "v5.channel.k8s.io", "v4.channel.k8s.io")
	if conn == nil {
		return
	}
	defer conn.Close()
	q := r.URL.Query()
	want := 1
	for _, name := range []string{"input", "output", "error"} {
		if q.Get(name) == "1" && (name != "error" || q.Get("tty") != "1") {
			want++
		}
	}
	if q.Get("tty") == "1" {
		want++
	}
	byType := map[string]httpstream.Stream{}
	for len(byType) < want {
		select {
		case s := <-streams:
			byType[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	end := `{"metadata":{},"status":"Success"}`
	switch command := append(q["command"], "cat"); command[0] {
	case "cat": // until stdin is closed
		_, _ = io.Copy(byType["stdout"], byType["stdin"])
		_, _ = io.WriteString(byType["stdout"], "|end of stdin")
	case "both":
		_, _ = io.WriteString(byType["stdout"], "out")
		_, _ = io.WriteString(byType["stderr"], "err")
	case "false":
		end = `{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"42"}]}}`
	case "resize":
		decoder := json.NewDecoder(byType["resize"])
		for range 2 {
			var size remotecommand.TerminalSize
			if decoder.Decode(&size) != nil {
				return
			}
			out, _ := json.Marshal(size)
			_, _ = byType["stdout"].Write(append(out, '\n'))
		}
	case "break":
		_, _ = io.WriteString(byType["stdout"], "so far")
		return // the connection, and with it everything
	case "wait":
		_, _ = io.WriteString(byType["stdout"], "waiting")
		<-conn.CloseChan()
		return
	}
	for _, name := range []string{"stdout", "stderr"} {
		if s := byType[name]; s != nil {
			_ = s.Close()
		}
	}
	_, _ = io.WriteString(byType["error"], end)
	_ = byType["error"].Close()
	<-conn.CloseChan()
}

// overWebSocket returns an Executor that runs a command in the pod "web" over WebSocket.
func overWebSocket(t *testing.T, f *front, o *corev1.PodExecOptions) remotecommand.Executor {
	t.Helper()
	o.Container = "main"
	return socketTo(t, f, "exec", o)
}

func socketTo(t *testing.T, f *front, subresource string, o runtime.Object) remotecommand.Executor {
	t.Helper()
	executor, err := remotecommand.NewWebSocketExecutor(rest.CopyConfig(f.config), http.MethodGet,
		f.streamAt(subresource, o).String())
	require.NoError(t, err)
	return executor
}

// sizes are the sizes of a terminal.
type sizes chan *remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize { return <-s }

// signaling is a buffer that sends its content to a channel after each write, if there is room.
type signaling struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan string
}

func (b *signaling) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	select {
	case b.written <- b.text.String():
	default:
	}
	return len(p), nil
}

func TestTranslate_WebSocketForAgentsThatSpeakSPDY(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 8)
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		oldKubelet(w, r)
		ended <- struct{}{}
	})
	run := func(t *testing.T, o *corev1.PodExecOptions, streams remotecommand.StreamOptions) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		defer func() { <-ended }() // the agent has ended, too
		return overWebSocket(t, f, o).StreamWithContext(ctx, streams)
	}
	t.Run("stdin ends and stdout goes on", func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t, &corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true},
			remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out}))
		require.Equal(t, "hello|end of stdin", out.String())
	})
	t.Run("ten megabytes each way", func(t *testing.T) {
		sent := make([]byte, 10<<20)
		_, _ = rand.Read(sent)
		var out bytes.Buffer
		require.NoError(t, run(t, &corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true},
			remotecommand.StreamOptions{Stdin: bytes.NewReader(sent), Stdout: &out}))
		require.True(t, bytes.Equal(append(sent, "|end of stdin"...), out.Bytes()))
	})
	t.Run("stdout and stderr", func(t *testing.T) {
		var out, errs bytes.Buffer
		require.NoError(t, run(t, &corev1.PodExecOptions{Command: []string{"both"}, Stdout: true, Stderr: true},
			remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}))
		require.Equal(t, "out", out.String())
		require.Equal(t, "err", errs.String())
	})
	t.Run("exit code", func(t *testing.T) {
		err := run(t, &corev1.PodExecOptions{Command: []string{"false"}, Stdout: true},
			remotecommand.StreamOptions{Stdout: io.Discard})
		var exit exec.CodeExitError
		require.True(t, errors.As(err, &exit), "%v", err)
		require.Equal(t, 42, exit.ExitStatus())
	})
	t.Run("resizing", func(t *testing.T) {
		queue, out := make(sizes, 1), &signaling{written: make(chan string, 8)}
		queue <- &remotecommand.TerminalSize{Width: 80, Height: 24}
		go func() {
			<-out.written
			queue <- &remotecommand.TerminalSize{Width: 132, Height: 50}
			close(queue)
		}()
		require.NoError(t,
			run(t, &corev1.PodExecOptions{Command: []string{"resize"}, Stdin: true, Stdout: true, TTY: true},
				remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: out, Tty: true,
					TerminalSizeQueue: queue}))
		require.Equal(t, "{\"Width\":80,\"Height\":24}\n{\"Width\":132,\"Height\":50}\n", out.text.String())
	})
	t.Run("the agent breaks off", func(t *testing.T) {
		var out bytes.Buffer
		err := run(t, &corev1.PodExecOptions{Command: []string{"break"}, Stdout: true},
			remotecommand.StreamOptions{Stdout: &out})
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("the client breaks off", func(t *testing.T) {
		out := &signaling{written: make(chan string, 8)}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-out.written
			cancel()
		}()
		err := overWebSocket(t, f, &corev1.PodExecOptions{Command: []string{"wait"}, Stdin: true, Stdout: true}).
			StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: neverEnds{t.Context()}, Stdout: out})
		require.ErrorIs(t, err, context.Canceled)
		<-ended // the agent ends, too
	})
}

func TestTranslate_AttachForAgentsThatSpeakSPDY(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 1)
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		oldKubelet(w, r)
		paths <- r.URL.Path
	})
	for name, tty := range map[string]bool{"streams": false, "a terminal": true} {
		t.Run(name, func(t *testing.T) {
			o := &corev1.PodAttachOptions{Container: "main", Stdin: true, Stdout: true, Stderr: !tty, TTY: tty}
			var out, errs bytes.Buffer
			streams := remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Tty: tty}
			if !tty {
				streams.Stderr = &errs
			}
			require.NoError(t, socketTo(t, f, "attach", o).StreamWithContext(t.Context(), streams))
			require.Equal(t, "hello|end of stdin", out.String())
			require.Empty(t, errs.String())
			require.Equal(t, "/attach/default/web/main", <-paths) // the agent has ended, too
		})
	}
	t.Run("the client breaks off", func(t *testing.T) {
		out := &signaling{written: make(chan string, 8)}
		ctx, cancel := context.WithCancel(t.Context())
		in, typed := io.Pipe()
		defer in.Close()
		go func() {
			_, _ = io.WriteString(typed, "hello")
			<-out.written
			cancel()
		}()
		err := socketTo(t, f, "attach", &corev1.PodAttachOptions{Container: "main", Stdin: true, Stdout: true}).
			StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out})
		require.ErrorIs(t, err, context.Canceled)
		<-paths // the agent ends, too
	})
}

func TestTunnel_PortForwardForAgentsThatSpeakSPDY(t *testing.T) {
	t.Parallel()
	ended := make(chan string, 1)
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		oldKubelet(w, r)
		ended <- r.URL.Path
	})
	target, err := url.Parse(f.config.Host + pods + "/web/portforward")
	require.NoError(t, err)
	dialer, err := portforward.NewSPDYOverWebsocketDialer(target, f.config)
	require.NoError(t, err)
	port, stop := forwarding(t, dialer)
	var talking sync.WaitGroup
	for range 3 { // at once, through one tunnel
		talking.Go(func() {
			sent := make([]byte, 1<<20)
			_, _ = rand.Read(sent)
			assert.True(t, bytes.Equal(sent, echoed(t, port, sent)))
		})
	}
	talking.Wait()
	stop()
	require.Equal(t, "/portForward/default/web", <-ended) // the agent ends with the client
}

// neverEnds is an input without data.
type neverEnds struct{ ctx context.Context }

func (n neverEnds) Read([]byte) (int, error) {
	<-n.ctx.Done()
	return 0, io.EOF
}

// If a node declares that its agent speaks WebSocket, the client's WebSocket is passed to it.
func TestTranslate_PassesWebSocketsToNodesThatSpeakIt(t *testing.T) {
	t.Parallel()
	upgrades := make(chan string, 1)
	f := withAgent(t, func(w http.ResponseWriter, r *http.Request) {
		upgrades <- r.Header.Get("Upgrade")
		proxytest.Stream(w, r)
	})
	exec := func() string {
		var out bytes.Buffer
		require.NoError(t,
			overWebSocket(t, f, &corev1.PodExecOptions{Command: []string{"cat"}, Stdin: true, Stdout: true}).
				StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"),
					Stdout: &out}))
		require.Equal(t, "cat:hello", out.String())
		return <-upgrades
	}
	require.Equal(t, "SPDY/3.1", exec())
	f.edit("Node", "n", func(obj api.Object) {
		obj.(*corev1.Node).Status.DeclaredFeatures = []string{"ExtendWebSocketsToKubelet"}
	})
	require.Equal(t, "websocket", exec())
}
