package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

// maxUnread is how many bytes of an answer may wait for the client; then the handler waits.
const maxUnread = 64 << 10

// answer is both sides of an answer: the handler's http.ResponseWriter, and the client's body.
type answer struct {
	request *http.Request // the client's
	cancel  context.CancelFunc
	header  http.Header // the handler's
	begun   chan struct{}

	mu      sync.Mutex
	changed sync.Cond // something was written or read, or err has been set
	sent    http.Header
	code    int
	unread  []byte
	err     error // after which nothing more is written: io.EOF in order
	failed  bool  // with err before there was anything for the client
}

func newAnswer(r *http.Request, cancel context.CancelFunc) *answer {
	a := &answer{request: r, cancel: cancel, header: http.Header{}, begun: make(chan struct{})}
	a.changed.L = &a.mu
	return a
}

// serve runs the handler.
func (a *answer) serve(h http.Handler, r *http.Request) {
	cut := context.AfterFunc(r.Context(), func() { a.end(io.ErrUnexpectedEOF) })
	defer func() {
		cut()
		switch p := recover(); {
		case r.Context().Err() != nil || p == http.ErrAbortHandler:
			a.end(io.ErrUnexpectedEOF)
		case p != nil:
			a.end(fmt.Errorf("panic while serving: %v", p))
		default:
			a.end(io.EOF)
		}
	}()
	h.ServeHTTP(a, r)
}

// end is called when the handler has returned or either side has left; the first reason counts.
func (a *answer) end(reason error) {
	a.mu.Lock()
	if a.err == nil {
		if a.err = reason; reason == io.EOF {
			a.writeHeader(http.StatusOK)
		}
		a.begin()
		a.changed.Broadcast()
	}
	a.mu.Unlock()
	a.cancel()
}

// begin lets the client have the head of the answer. The lock is held.
func (a *answer) begin() {
	select {
	case <-a.begun:
	default:
		a.failed = a.err != nil && a.err != io.EOF
		close(a.begun)
	}
}

// response waits for the answer to begin.
func (a *answer) response() (*http.Response, error) {
	<-a.begun
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed {
		return nil, a.err
	}
	res := &http.Response{
		StatusCode: a.code, Status: strconv.Itoa(a.code) + " " + http.StatusText(a.code),
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: a.sent, Request: a.request, Body: (*body)(a), ContentLength: -1,
	}
	if length, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		res.ContentLength = length
	} else if a.err != nil {
		res.ContentLength = int64(len(a.unread))
	}
	return res, nil
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter. Informational answers are dropped, as most clients do.
func (a *answer) WriteHeader(code int) {
	if code >= 100 && code < 200 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(code)
}

func (a *answer) writeHeader(code int) {
	if a.code == 0 {
		a.code, a.sent = code, a.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	if a.code == http.StatusNoContent || a.code == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if a.request.Method == http.MethodHead {
		return len(b), nil
	}
	for len(b) > 0 {
		for a.err == nil && len(a.unread) >= maxUnread {
			a.begin()
			a.changed.Wait()
		}
		if a.err != nil {
			return n, a.err
		}
		now := b[:min(len(b), maxUnread-len(a.unread))]
		a.unread = append(a.unread, now...)
		b, n = b[len(now):], n+len(now)
		a.changed.Signal()
	}
	return n, nil
}

// FlushError is for http.ResponseController: what has been written is the client's to read.
func (a *answer) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	a.begin()
	return a.err
}

// SetWriteDeadline is for http.ResponseController. A deadline that has passed cuts the answer; none can be set for
// later.
func (a *answer) SetWriteDeadline(at time.Time) error {
	switch {
	case at.IsZero():
		return nil
	case at.After(time.Now()):
		return errors.ErrUnsupported
	}
	a.end(os.ErrDeadlineExceeded)
	return nil
}

// body is the client's side of an answer.
type body answer

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.unread) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.changed.Wait()
	}
	n := copy(p, b.unread)
	if b.unread = b.unread[n:]; len(b.unread) == 0 {
		b.unread = nil // a client that waits keeps no buffer
	}
	b.changed.Signal()
	return n, nil
}

// Close implements io.Closer: the client has left.
func (b *body) Close() error {
	(*answer)(b).end(errLeft)
	return nil
}

var errLeft = errors.New("the client has closed the answer")
