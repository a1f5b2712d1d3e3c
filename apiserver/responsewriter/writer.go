package responsewriter

import (
	"io"
	"net/http"
	"strconv"

	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
)

// Writer is the response to one request, and owns the reservations of the request. Open begins it and Close releases
// them. The zero Writer is for work that is no client's request: it may be asked to reserve memory, and grants it
// without a reservation. A Writer must not be copied.
type Writer struct {
	// ResponseWriter is net/http's. Writes to it bypass the accounting.
	http.ResponseWriter

	limiter *Limiter      // nil if the Writer makes no reservations
	request *http.Request // as net/http made it: it leads to the connection
	audit   *audit.Request

	code  int   // of the response; 0 until the head is sent
	bytes int64 // of the body that have been written

	// memory is the reservation. object is the part of it that is for the stored object that the request changes
	// (ReserveWrite). stream is counted beside the budget.
	memory budget.Account
	object int64
	stream countedStream

	// seat is the request as flow control sees it. It is zero until TakeSeats. Only the handler's goroutine may use
	// it, and a function that whenSlow runs while that goroutine waits.
	seat flowcontrol.Request
	// guarded is set while a function that guard returned has not been called.
	guarded bool
}

// Open makes w the response to r by to. It returns false if there is no memory for another request of HTTP/2. Close
// must follow in either case.
func (w *Writer) Open(l *Limiter, to http.ResponseWriter, r *http.Request) bool {
	w.ResponseWriter, w.limiter, w.request, w.memory = to, l, r, l.Memory.Open()
	return w.countStream()
}

// Close releases the memory that the request has reserved. It may be called twice.
func (w *Writer) Close() {
	w.memory.Close()
	w.stream.leave()
}

// Record notes the progress of the response in an audit record from now on. It must come before the response.
func (w *Writer) Record(record *audit.Request) { w.audit = record }

// Audit returns the request's audit record, which is nil, and may be used, if the request is not audited.
func (w *Writer) Audit() *audit.Request { return w.audit }

// Code returns the HTTP status code of the response, 0 while none has been sent.
func (w *Writer) Code() int { return w.code }

// Bytes returns how many bytes of the body have been written.
func (w *Writer) Bytes() int64 { return w.bytes }

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the head of the response.
func (w *Writer) WriteHeader(code int) {
	w.Answered(code)
	w.ResponseWriter.WriteHeader(code)
}

// Answered notes the code of the response as its head is sent, by w or by a handler that has taken over the connection.
// Only the first code counts.
func (w *Writer) Answered(code int) {
	if w.code == 0 {
		w.code = code
		w.audit.Answered(code)
	}
}

// Write sends a part of the body. While it waits for the client, the memory is lent: the client is cut off once it is
// late and other requests wait for the memory. If it is slow, the seats are released. For several writes together a
// guard does that; without one Write does it itself, from the first bytes on that do not fit into net/http's buffer.
func (w *Writer) Write(b []byte) (int, error) {
	w.Answered(http.StatusOK)
	timer := w.audit.Begin(audit.ResponseWrite)
	timeout := w.startTimeout(len(b))
	if !w.guarded && w.bytes+int64(len(b)) > httpBuffer && w.seat.Executing() {
		defer whenSlow(w.ReleaseSeats)()
	}
	n, err := w.ResponseWriter.Write(b)
	timeout.Stop()
	timer.End()
	w.bytes += int64(n)
	return n, err
}

// httpBuffer is the size of net/http's buffer for a response: more is written only as fast as the client reads.
const httpBuffer = 4 << 10

// WriteBody sends a whole response by to, which is w or a ResponseWriter around it: the head with its length, and
// body followed by tail. The caller has set the Content-Type. compress permits gzip for a long body. Errors are not
// reported: the client has gone.
func (w *Writer) WriteBody(to http.ResponseWriter, code int, compress bool, body []byte, tail string) {
	to.Header().Set("Content-Length", strconv.Itoa(len(body)+len(tail)))
	out, finish := compressed(to, compress, len(body))
	defer finish()
	to.WriteHeader(code)
	if len(body) > httpBuffer {
		defer w.guard()()
	}
	_, _ = out.Write(body)
	if tail != "" {
		_, _ = io.WriteString(out, tail)
	}
}
