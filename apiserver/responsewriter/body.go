package responsewriter

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// ReadBody reads the body of a request, of limit bytes at most: more is an *http.MaxBytesError. Memory is reserved as
// the body arrives, not as its length announces. A slow-client timeout runs while the client sends: a client that is
// late gives way to requests that wait for memory. to is the request's ResponseWriter.
func (w *Writer) ReadBody(to http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	resume := w.yieldSeats(r.Context())
	body, err := w.readAll(r.Context(), http.MaxBytesReader(to, r.Body, limit), r.ContentLength, func() {
		_ = http.NewResponseController(to).SetReadDeadline(time.Now())
	})
	if full := resume(); err == nil {
		err = full
	}
	return body, err
}

// readAll reads to the end of from. announced is the length that the client promises; less than 0 if it promises none.
// The buffer begins with room for it up to FreeMemory, and doubles. giveWay ends a Read that waits for the client.
func (w *Writer) readAll(ctx context.Context, from io.Reader, announced int64, giveWay func()) (
	body []byte, err error) {
	body = make([]byte, 0, int(min(max(announced, 0), FreeMemory))+bytes.MinRead)
	var timeout *budget.Timeout // lasts while the client fills the buffer
	defer func() {
		if !timeout.Stop() {
			body, err = nil, status.TooManyRequests()
		}
	}()
	for {
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
		if len(body) < cap(body) {
			continue
		}
		room := 2 * cap(body)
		if announced > int64(cap(body)) {
			room = min(room, int(announced)+bytes.MinRead)
		}
		if !timeout.Stop() {
			return nil, status.TooManyRequests()
		}
		timeout = nil
		if err := w.reserve(ctx, int64(room)); err != nil {
			return nil, err
		}
		timeout = w.memory.StartTimeout(lateAfter(room-len(body)), giveWay)
		body = append(make([]byte, 0, room), body...)
	}
}
