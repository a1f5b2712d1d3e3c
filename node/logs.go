package node

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// followEvery is the interval of reads of a followed log.
const followEvery = 100 * time.Millisecond

// copyLog writes the part of a log that the options select. It calls open twice if only the end is requested. A
// followed log is copied until its run or ctx has ended.
func copyLog(ctx context.Context, w io.Writer, open func() (runtime.LogReader, error), run *runtime.LogRun,
	o *corev1.PodLogOptions,
	c clock.WithTicker) error {
	skip, err := linesBefore(open, o)
	if err != nil {
		return err
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	out := &logWriter{w: w, options: o, since: since(o, c.Now()), skip: skip}
	var ticks <-chan time.Time
	for {
		_, ended := run.Ended() // called before the read, which then includes everything written before the end
		err := out.copy(r)
		if errors.Is(err, errLimit) {
			return nil
		}
		if err != nil || !o.Follow || ended {
			return err
		}
		out.flush()
		if ticks == nil {
			ticker := c.NewTicker(followEvery)
			defer ticker.Stop()
			ticks = ticker.C()
		}
		select {
		case <-ticks:
		case <-ctx.Done():
			return nil
		}
	}
}

func since(o *corev1.PodLogOptions, now time.Time) time.Time {
	switch {
	case o.SinceSeconds != nil:
		return now.Add(-amount.Seconds(*o.SinceSeconds))
	case o.SinceTime != nil:
		return o.SinceTime.Time
	}
	return time.Time{}
}

// linesBefore counts the lines before the last ones that the options select.
func linesBefore(open func() (runtime.LogReader, error), o *corev1.PodLogOptions) (int64, error) {
	if o.TailLines == nil {
		return 0, nil
	}
	r, err := open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	var lines int64
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return max(0, lines-*o.TailLines), nil
		}
		if err != nil {
			return 0, err
		}
		if !record.Partial {
			lines++
		}
	}
}

var errLimit = errors.New("the limit of bytes is reached")

// logWriter writes records in the format of the options.
type logWriter struct {
	w       io.Writer
	options *corev1.PodLogOptions
	since   time.Time
	skip    int64
	written int64
	inLine  bool
}

// copy writes all records that are available.
func (l *logWriter) copy(r runtime.LogReader) error {
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.record(&record); err != nil {
			return err
		}
	}
}

func (l *logWriter) record(r *runtime.LogRecord) error {
	if l.skip > 0 {
		if !r.Partial {
			l.skip--
		}
		return nil
	}
	if r.At.Before(l.since) {
		return nil
	}
	var line []byte
	if l.options.Timestamps && !l.inLine {
		line = append(r.At.UTC().AppendFormat(line, time.RFC3339Nano), ' ')
	}
	line = append(line, r.Text...)
	if !r.Partial {
		line = append(line, '\n')
	}
	l.inLine = r.Partial
	if limit := l.options.LimitBytes; limit != nil && l.written+int64(len(line)) >= *limit {
		_, err := l.w.Write(line[:*limit-l.written])
		return errors.Join(err, errLimit)
	}
	l.written += int64(len(line))
	_, err := l.w.Write(line)
	return err
}

func (l *logWriter) flush() {
	if f, ok := l.w.(http.Flusher); ok {
		f.Flush()
	}
}
