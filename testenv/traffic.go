package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// traffic records every request to an API server, and applies faults to them. Its zero value is ready to use, and
// its methods are safe for concurrent use.
type traffic struct {
	calls  record
	faults faults

	// mu guards the fields below.
	mu      sync.Mutex
	watches map[*openWatch]struct{}
	// serving ends when the API server begins to stop: it does not wait for requests that a fault delays.
	serving context.Context
}

// begin must be called before the API server serves.
func (t *traffic) begin(serving context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serving = serving
}

// wait waits for a fault's delay. If the client leaves or the API server stops before the end of the delay, the
// request has no answer.
func (t *traffic) wait(r *http.Request, f *Fault) {
	t.mu.Lock()
	serving := t.serving
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	if pause(ctx, f.Delay) != nil {
		panic(http.ErrAbortHandler)
	}
}

// around is the API server's Middleware: it records a request and applies faults to it.
func (t *traffic) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call := newCall(r)
		if call.Verb == "watch" {
			t.watch(w, r, next, call)
			return
		}
		fault, a := t.faults.take(&call, either), &answer{ResponseWriter: w}
		defer func() {
			call.Duration, call.Code = time.Since(call.Time), a.code
			if name, unchanged := apiserver.Written(r); name != "" {
				call.Name, call.Unchanged = clip(name), unchanged
			}
			t.calls.add(&call)
		}()
		if fault == nil {
			next.ServeHTTP(a, r)
			return
		}
		if fault.After {
			buffer := &heldAnswer{answer: a}
			next.ServeHTTP(buffer, r)
			t.wait(r, fault)
			if fault.Err == nil {
				buffer.release()
			}
		} else {
			t.wait(r, fault)
			if fault.Err == nil {
				next.ServeHTTP(a, r)
			}
		}
		if fault.Err != nil {
			fail(a, fault.Err)
		}
	})
}

// fail answers with an error, or cuts the connection.
func fail(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrNoAnswer) {
		panic(http.ErrAbortHandler)
	}
	s := statusOf(err)
	body, _ := json.Marshal(&s) // a Status can always be encoded
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	w.Header().Set("Content-Type", encoding.MediaJSON)
	w.WriteHeader(int(s.Code))
	_, _ = w.Write(body) // if this fails, the client has gone
}

func statusOf(err error) metav1.Status {
	s := status.Of(err, status.Subject{})
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if s.Code < 100 || s.Code > 599 {
		s.Code = http.StatusInternalServerError
	}
	return s
}

// answer records the code of an answer.
type answer struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
	a.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if a.code == 0 {
		a.code = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// heldAnswer buffers an answer until release writes it.
type heldAnswer struct {
	answer *answer
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (h *heldAnswer) Header() http.Header {
	if h.header == nil {
		h.header = http.Header{}
	}
	return h.header
}

// WriteHeader implements http.ResponseWriter.
func (h *heldAnswer) WriteHeader(code int) {
	if h.code == 0 {
		h.code = code
	}
}

// Write implements http.ResponseWriter.
func (h *heldAnswer) Write(b []byte) (int, error) { return h.body.Write(b) }

// Unwrap lets http.ResponseController reach the connection.
func (h *heldAnswer) Unwrap() http.ResponseWriter { return h.answer }

func (h *heldAnswer) release() {
	for key, values := range h.header {
		h.answer.Header()[key] = values
	}
	if h.code != 0 {
		h.answer.WriteHeader(h.code)
	}
	_, _ = h.answer.Write(h.body.Bytes()) // if this fails, the client has gone
}

// openWatch is a watch that is being served. Its handler's goroutine uses it, except end, which drop may call.
type openWatch struct {
	answer
	traffic *traffic
	call    Call
	request *http.Request
	end     context.CancelFunc
	// A fault has ended the watch: no more is sent, and the connection is cut if cut is set.
	ended, cut bool
}

// watch serves a watch.
func (t *traffic) watch(w http.ResponseWriter, r *http.Request, next http.Handler, call Call) {
	ctx, end := context.WithCancel(r.Context())
	defer end()
	r = r.WithContext(ctx)
	o := &openWatch{answer: answer{ResponseWriter: w}, traffic: t, call: call, request: r, end: end}
	if fault := t.faults.take(&o.call, early); fault != nil {
		t.wait(r, fault)
		if fault.Err != nil {
			defer func() {
				o.call.Code = o.code
				t.calls.add(&o.call)
			}()
			fail(&o.answer, fault.Err)
			return
		}
	}
	t.opened(o)
	defer t.closed(o)
	next.ServeHTTP(o, r)
	if o.cut {
		panic(http.ErrAbortHandler)
	}
}

func (t *traffic) opened(o *openWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watches == nil {
		t.watches = map[*openWatch]struct{}{}
	}
	t.watches[o] = struct{}{}
}

func (t *traffic) closed(o *openWatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.watches, o)
}

// drop ends the open watches that match one of the matches, and returns their number.
func (t *traffic) drop(matches []Match) (dropped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o := range t.watches {
		if matchesAny(matches, &o.call) {
			o.end()
			delete(t.watches, o)
			dropped++
		}
	}
	return dropped
}

// WriteHeader implements http.ResponseWriter. A watch is recorded when it begins.
func (o *openWatch) WriteHeader(code int) {
	if o.code == 0 {
		recorded := o.call
		recorded.Code = code
		o.traffic.calls.add(&recorded)
	}
	o.answer.WriteHeader(code)
}

// Write implements http.ResponseWriter. Each call is a batch of events.
func (o *openWatch) Write(events []byte) (int, error) {
	if o.ended {
		return len(events), nil
	}
	if len(o.traffic.faults.inForce()) == 0 {
		return o.answer.Write(events)
	}
	call := o.call
	fault := o.traffic.faults.take(&call, late)
	if fault == nil {
		return o.answer.Write(events)
	}
	o.traffic.wait(o.request, fault)
	n, err := o.answer.Write(events)
	if fault.Err != nil {
		o.ended = true
		if o.cut = errors.Is(fault.Err, ErrNoAnswer); !o.cut {
			_, _ = o.answer.Write(o.errorEvent(fault.Err))
		}
		_ = http.NewResponseController(o.ResponseWriter).Flush()
		o.end()
	}
	return n, err
}

// errorEvent returns an ERROR event in the encoding of the stream.
func (o *openWatch) errorEvent(err error) []byte {
	media := encoding.MediaJSON
	for _, other := range []string{encoding.MediaProtobuf, encoding.MediaCBOR} {
		if strings.HasPrefix(o.Header().Get("Content-Type"), other) {
			media = other
		}
	}
	form := encoding.Form{Output: encoding.Output{Media: media}, Resource: &api.Resource{}}
	return encoding.NewFramer(form).AppendError(nil, statusOf(err))
}
