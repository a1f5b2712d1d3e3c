// Package stream is the server's side of the streams that kubectl exec, attach, cp and port-forward open:
// over WebSocket (v5.channel.k8s.io and before, and SPDY tunnelled through it for ports) and over SPDY/3.1.
//
// What comes in: an HTTP request that asks to be upgraded. What goes out: plain readers and writers to
// a function that runs a command, or a connection for each forwarded port. Nothing here knows pods.
//
//	command.go      exec and attach, whatever the transport
//	spdy.go         a command over SPDY
//	websocket.go    a command over WebSocket
//	portforward.go  ports over either
package stream

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Size is a terminal's, in characters.
type Size struct{ Width, Height uint16 }

// Command is what a client and a command say to each other. What the client did not ask for is nil.
type Command struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	// Resize brings the terminal's sizes, and is closed when no more will come.
	Resize <-chan Size
}

// ExitError is the error of a command that ran and ended with a code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return "command terminated with non-zero exit code: exit status " + strconv.Itoa(e.Code)
}

// Options are which streams a client asks for.
type Options struct{ Stdin, Stdout, Stderr, TTY bool }

// ParseOptions reads them from a query in the kubelet's words. A terminal has one output.
func ParseOptions(q url.Values) (Options, error) {
	on := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	o := Options{Stdin: on("input"), Stdout: on("output"), Stderr: on("error"), TTY: on("tty")}
	if o.TTY {
		o.Stderr = false
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return o, errors.New("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// client is the other side of a command, whatever the transport.
type client struct {
	Command
	resize io.Reader                          // JSON documents; nil where there are none
	status func(*metav1.Status) error         // says how the command ended; the last that is said
	gone   func(cancel func()) (ended func()) // calls cancel once the client has left
	close  func()
}

// ServeCommand upgrades a request, runs a command on its streams and reports to the client how it ended. run's ctx
// ends when the client leaves. It returns when run has.
func ServeCommand(w http.ResponseWriter, r *http.Request, o Options, run func(context.Context, *Command) error) {
	open := openSPDY
	if wsstream.IsWebSocketRequest(r) {
		open = openWebSocket
	}
	c, err := open(w, r, o)
	if err != nil {
		return // the answer has been given
	}
	defer c.close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	sizes := make(chan Size)
	c.Resize, c.TTY = sizes, o.TTY
	go func() { // ends with the connection
		defer close(sizes)
		readSizes(ctx, c.resize, sizes)
		if c.resize != nil && wsstream.IsWebSocketRequest(r) {
			cancel() // it is the channel that no client closes alone
		}
	}()
	ended := c.gone(cancel)
	err = run(ctx, &c.Command)
	ended()
	_ = c.status(statusOf(err)) // a client that has left will not read it
}

// maxSizeMessage is far beyond the length of what a client says of its terminal, in bytes. The decoder keeps
// what has no end.
const maxSizeMessage = 4 << 10

// readSizes passes on what a client says of its terminal until it says no more.
func readSizes(ctx context.Context, from io.Reader, to chan<- Size) {
	if from == nil {
		return
	}
	message := &io.LimitedReader{R: from}
	decoder := json.NewDecoder(message)
	for {
		var size Size
		message.N = maxSizeMessage
		if decoder.Decode(&size) != nil {
			return
		}
		select {
		case to <- size:
		case <-ctx.Done():
			return
		}
	}
}

// statusOf is how a command ended, as version 4 of the protocol says it.
func statusOf(err error) *metav1.Status {
	var exit *ExitError
	switch {
	case err == nil:
		return &metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit):
		return &metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: exit.Error(),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
				Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.Code),
			}}},
		}
	}
	status := apierrors.NewInternalError(err).Status()
	return &status
}

// writeStatus says how a command ended in the words of a protocol's version: as a Status from version 4 on,
// and before as a text, where there was an error.
func writeStatus(w io.Writer, structured bool, status *metav1.Status) error {
	if structured {
		return json.NewEncoder(w).Encode(status)
	}
	if status.Status == metav1.StatusSuccess {
		return nil
	}
	_, err := io.WriteString(w, status.Message)
	return err
}
