package conn

import (
	"net/http"
	"time"
)

// TimedWriter is the response to a request that lasts. A client that does not read it for long loses its connection or
// stream. It is for one goroutine.
type TimedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   *Stall
}

// NewTimedWriter returns a writer to w that allows timeout for each write and each flush. The caller stops it.
func NewTimedWriter(w http.ResponseWriter, timeout time.Duration) *TimedWriter {
	control := http.NewResponseController(w)
	return &TimedWriter{w, control, EndStalled(control, timeout)}
}

// Stop ends the supervision of writes. It must be called before the handler returns, see Stall.Stop.
func (w *TimedWriter) Stop() { w.stall.Stop() }

// Unwrap lets http.ResponseController reach the connection.
func (w *TimedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *TimedWriter) Write(b []byte) (int, error) {
	w.stall.Begin()
	defer w.stall.End()
	return w.ResponseWriter.Write(b)
}

// FlushError implements the flush of http.ResponseController.
func (w *TimedWriter) FlushError() error {
	w.stall.Begin()
	defer w.stall.End()
	return w.control.Flush()
}
