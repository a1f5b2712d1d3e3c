// Package stream implements the server side of the streams that kubectl exec, attach, cp and port-forward open: over
// WebSocket (v5.channel.k8s.io and older protocols, and SPDY tunnelled through WebSocket for ports) and over SPDY/3.1.
//
// Input: an HTTP request for an upgrade. Output: plain readers and writers for a function that runs a command, or a
// connection for each forwarded port. The package knows nothing of pods.
//
//	command.go      exec and attach, independent of the transport
//	spdy.go         a command over SPDY
//	websocket.go    a command over WebSocket
//	portforward.go  ports over either transport
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

// Size is the size of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// Command is the set of streams between a client and a command. Streams that the client did not request are nil.
type Command struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	// Resize delivers the terminal's sizes. It is closed after the last one.
	Resize <-chan Size
}

// ExitError reports that a command ran and ended with a code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return "command terminated with non-zero exit code: exit status " + strconv.Itoa(e.Code)
}

// Options are the streams that a client requests.
type Options struct{ Stdin, Stdout, Stderr, TTY bool }

// ParseOptions reads Options from the query parameters of the kubelet's API. A terminal has no separate stderr.
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

// client is the client's side of a command, over any transport.
type client struct {
	Command
	resize io.Reader                          // JSON documents; nil if there are none
	status func(*metav1.Status) error         // sends the result of the command; must be the last write
	gone   func(cancel func()) (ended func()) // calls cancel once the client has left, until ended is called
	close  func()
}

// ServeCommand upgrades a request, runs a command on its streams, and sends the result to the client. The context of
// run ends when the client leaves. ServeCommand returns after run has returned.
func ServeCommand(w http.ResponseWriter, r *http.Request, o Options, run func(context.Context, *Command) error) {
	open := openSPDY
	if wsstream.IsWebSocketRequest(r) {
		open = openWebSocket
	}
	c, err := open(w, r, o)
	if err != nil {
		return // open has written the response
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
			cancel() // clients close this channel only together with the connection
		}
	}()
	ended := c.gone(cancel)
	err = run(ctx, &c.Command)
	ended()
	_ = c.status(statusOf(err)) // fails if the client has left
}

// maxSizeMessage limits the bytes of one message about the terminal's size; real ones are far shorter. Without it the
// decoder would buffer an endless message.
const maxSizeMessage = 4 << 10

// readSizes forwards the terminal's sizes until the client sends no more.
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

// statusOf returns the result of a command as version 4 of the protocol defines it.
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

// writeStatus writes the result of a command: as a Status from version 4 of the protocol on, and as the text of the
// error, if there is one, before.
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
