package responsewriter

import (
	"net/http"
	"runtime"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
)

// slowAfter is how long a request may wait, for its client or for memory, before it releases its seats.
const slowAfter = 25 * time.Millisecond

// A client that memory is reserved for must read or send at a pace, or else give way to requests that wait for memory.
// It has clientPause for each piece, and the time that the piece takes at clientPace, in bytes per second.
const (
	clientPause = 3 * time.Second
	clientPace  = 256 << 10
)

// lateAfter returns when a client that begins to read or to send n bytes now is late.
func lateAfter(n int) time.Time {
	return time.Now().Add(clientPause + time.Duration(n)*time.Second/clientPace)
}

// slowMemory is about how many bytes a request holds beside its reservation while its client does not read: a
// goroutine, and the buffers of net/http.
const slowMemory = 32 << 10

// whenSlow calls f from another goroutine unless done is called within slowAfter. done waits for f to return, so that f
// may use variables that belong to the caller's goroutine while that goroutine waits for something else.
func whenSlow(f func()) (done func()) {
	returned := make(chan struct{})
	timer := time.AfterFunc(slowAfter, func() {
		defer close(returned)
		f()
	})
	return func() {
		if !timer.Stop() {
			<-returned
		}
	}
}

// startTimeout starts a slow-client timeout before a write of n bytes: once the client is late, requests that wait for
// memory may cut it off. The caller stops the timeout after the write.
func (w *Writer) startTimeout(n int) *budget.Timeout {
	if w.memory.Reserved() == 0 {
		return nil
	}
	return w.memory.StartTimeout(lateAfter(n), w.cutOff)
}

// guard watches over writes that only go on as the client reads, until done is called. If they are slow, the request
// releases its seats, and slowMemory is counted for it. If that exceeds the budget, the client that is due first is cut
// off, which may be this one (Budget.ChargeSlow). Of nested guards the outermost counts.
func (w *Writer) guard() (done func()) {
	if w.guarded || w.limiter == nil || w.limiter.Flow == nil && !w.limiter.Memory.Limited() {
		return func() {}
	}
	w.guarded = true
	var timeout *budget.Timeout // set by the timer's goroutine, which has ended when fast returns
	fast := whenSlow(func() {
		w.ReleaseSeats()
		timeout = w.limiter.Memory.ChargeSlow(slowMemory, lateAfter(0), w.cutOff)
	})
	return func() {
		fast()
		timeout.Stop()
		w.guarded = false
	}
}

// cutOff makes the write in progress fail, and later ones. It is called from goroutines of other requests, but not
// after the timeout that it belongs to has been stopped.
func (w *Writer) cutOff() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now())
	conn.Below(w.request).EndIfStuck()
}

// crowd is the number of goroutines above which a process with a memory limit waits until clients have read their
// responses.
const crowd = 1000

// Deliver waits, in a crowd, until the client has read the response. net/http would do so after the handler has
// returned, when this server no longer counts the request, and a client of HTTP/2 that never reads could have any
// number of responses.
func (w *Writer) Deliver() {
	if w.request.ProtoMajor < 2 || !w.limiter.Memory.Limited() || runtime.NumGoroutine() < crowd {
		return
	}
	defer w.guard()()
	_ = http.NewResponseController(w).Flush()
}
