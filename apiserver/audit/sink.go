package audit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// output writes the events of a sink. Its methods are safe for concurrent use.
type output interface {
	// write writes events, each ending in a newline. Calls may be concurrent.
	write(ctx context.Context, lines []byte) error
	// writers returns the number of concurrent calls that a batching sink makes.
	writers() int
	close() error
}

const (
	// closingFor is how long a closing sink tries to write the remaining events.
	closingFor = 5 * time.Second
	// calm is the time without losses after which a sink logs that it has recovered.
	calm = 10 * time.Second
)

var (
	errFull     = errors.New("the buffer is full")
	errClosed   = errors.New("the server is shutting down")
	errTooLarge = errors.New("an event is too large even without its bodies")
)

// sink formats events and passes them to an output, immediately or in batches.
type sink struct {
	name     string
	legacy   bool
	strict   bool
	truncate TruncateOptions
	to       output
	queue    *queue // nil in the blocking modes
	metrics  *metrics
	log      *slog.Logger

	failing atomic.Bool
	mu      sync.Mutex
	lost    int // events lost since the failures began
	last    time.Time
}

func newSink(name string, legacy bool, batch BatchOptions, truncate TruncateOptions, to output, m *metrics,
	log *slog.Logger) *sink {
	s := &sink{name: name, legacy: legacy, strict: batch.Mode == ModeBlockingStrict, truncate: truncate, to: to,
		metrics: m, log: log}
	if batch.Mode == ModeBatch {
		s.queue = newQueue(batch, truncate.MaxBatchSize, to.writers(), s.deliver)
	}
	return s
}

// record accepts an event; line is its JSON and must not be kept. It returns false if the event is lost and the
// request must be rejected.
func (s *sink) record(e *event, line []byte) bool {
	if s.truncate.Enabled && int64(len(line)) > s.truncate.MaxEventSize {
		if len(e.request)+len(e.response) > 0 {
			line = append(e.append([]byte(typeMeta), false), '\n')
		}
		if int64(len(line)) > s.truncate.MaxEventSize {
			s.failed("truncate", 1, errTooLarge)
			return !s.strict
		}
	}
	if s.legacy {
		line = e.appendLegacy(nil)
	}
	if s.queue != nil {
		if err := s.queue.put(line); err != nil {
			s.failed("buffered", 1, err)
		}
		return true
	}
	return s.deliver(context.Background(), line, 1) || !s.strict
}

// deliver writes events and tracks failures.
func (s *sink) deliver(ctx context.Context, lines []byte, events int) bool {
	if err := s.to.write(ctx, lines); err != nil {
		s.failed(s.name, events, err)
		return false
	}
	s.worked()
	return true
}

// failed counts lost events. It logs the first one in a row of failures.
func (s *sink) failed(plugin string, events int, err error) {
	s.metrics.errors.WithLabelValues(plugin).Add(float64(events))
	s.mu.Lock()
	s.lost += events
	s.last = time.Now()
	s.mu.Unlock()
	if !s.failing.Swap(true) {
		s.log.Error("audit events are lost", "backend", s.name, "error", err)
	}
}

// worked notes a success. Since an overloaded sink alternates between losing and recording events, it reports
// recovery only after the time calm.
func (s *sink) worked() {
	if !s.failing.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last) < calm || !s.failing.Swap(false) {
		return
	}
	s.log.Info("audit events are recorded again", "backend", s.name, "lost", s.lost)
	s.lost = 0
}

func (s *sink) close() error {
	if s.queue != nil {
		s.queue.close()
	}
	return s.to.close()
}
