package apiserver

import (
	"net/http"
	"runtime"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/budget"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
)

// seatStall is how long a request may wait, for its client or for memory, before it gives its seats back.
const seatStall = 25 * time.Millisecond

// stalledMemory is about how many bytes a request holds whose client does not read, beside what it was charged: its
// goroutine, and the buffers of net/http.
const stalledMemory = 32 << 10

// afterStall calls stalled unless what it returns is called within seatStall. That waits for stalled to return.
func afterStall(stalled func()) (over func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(seatStall, func() {
		defer close(done)
		stalled()
	})
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}

// waiting is called before a request waits for memory, and what it returns afterwards. One that waits for long gives
// its seats back: others need not wait for what it waits for.
func (r *request) waiting() (over func()) {
	if r.flow == nil || !r.seat.Executing() {
		return func() {}
	}
	return afterStall(func() { r.flow.Finish(r.seat) })
}

// sending is called before writes that wait for the client to read, and the function that it returns afterwards. If
// they take long, the request gives back its seats, whichever route it took, and what it holds is counted: when there
// is no memory for it, the client that has kept others waiting longest is cut off. Of nested calls only the outermost
// counts.
func (s *Server) sending(w http.ResponseWriter) (sent func()) {
	to := observed(w)
	if to.sending || s.flow == nil && !s.memory.Limited() {
		return func() {}
	}
	to.sending = true
	var loan *budget.Loan
	over := afterStall(func() {
		if to.seat != nil && to.seat.Executing() {
			s.leaveSeat(to.seat)
		}
		loan = s.memory.Stall(stalledMemory, lateAfter(0), to.cutOff)
	})
	return func() {
		over()
		loan.Return()
		to.sending = false
	}
}

// cutOff ends a response whose client does not read.
func (r *response) cutOff() {
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now())
	conn.Below(r.of).EndIfStuck()
}

// crowd is from how many goroutines on a process with little memory looks at each answer.
const crowd = 1000

// deliver returns when the client has read what it was sent. net/http would see to that without the server knowing, and
// an HTTP/2 client that reads nothing may have any number of answers.
func (s *Server) deliver(w *response) {
	if w.of.ProtoMajor < 2 || !s.memory.Limited() || runtime.NumGoroutine() < crowd {
		return
	}
	defer s.sending(w)()
	_ = http.NewResponseController(w).Flush()
}
