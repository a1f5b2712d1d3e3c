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

// maxUnread limits the bytes of an answer that wait for the client; beyond it the handler waits.
const maxUnread = 64 << 10

// answer is both sides of an answer: the handler's http.ResponseWriter, and the client's body. Handler and client
// run in different goroutines.
type answer struct {
	request *http.Request // the client's
	cancel  context.CancelFunc
	header  http.Header   // the handler's
	begun   chan struct{} // closed when the client may have the head of the answer

	// mu guards the fields below. The handler's goroutine alone uses header.
	mu      sync.Mutex
	changed sync.Cond   // signals that bytes were written or read, or that err was set
	sent    http.Header // a copy of header, from WriteHeader
	code    int
	unread  []byte
	err     error // set when the answer ends, and not changed after that; io.EOF if it is complete
	failed  bool  // err was set before the client had the head: RoundTrip returns it
}

func newAnswer(r *http.Request, cancel context.CancelFunc) *answer {
	a := &answer{request: r, cancel: cancel, header: http.Header{}, begun: make(chan struct{})}
	a.changed.L = &a.mu
	return a
}

// serve runs the handler, and ends the answer when it returns, panics, or the request's context ends.
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

// end is called when the handler has returned or either side has left; the first reason counts. It wakes both
// sides.
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

// begin lets the client have the head of the answer. The caller holds the lock.
func (a *answer) begin() {
	select {
	case <-a.begun:
	default:
		a.failed = a.err != nil && a.err != io.EOF
		close(a.begun)
	}
}

// response waits until the answer begins.
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

// WriteHeader implements http.ResponseWriter. Informational answers are dropped; most clients ignore them as well.
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
		part := b[:min(len(b), maxUnread-len(a.unread))]
		a.unread = append(a.unread, part...)
		b, n = b[len(part):], n+len(part)
		a.changed.Signal()
	}
	return n, nil
}

// FlushError implements the interface of http.ResponseController: the client can read all bytes that have been
// written.
func (a *answer) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	a.begin()
	return a.err
}

// SetWriteDeadline implements the interface of http.ResponseController. A deadline in the past cuts the answer; a
// future one is not supported.
func (a *answer) SetWriteDeadline(deadline time.Time) error {
	switch {
	case deadline.IsZero():
		return nil
	case deadline.After(time.Now()):
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
		b.unread = nil // a waiting client keeps no buffer
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
