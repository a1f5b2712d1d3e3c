// Package loglines keeps the latest lines that a component of this process has logged, so that they can be read as the
// log of its pod. A Log is written like a file, and read by any number of readers, which may follow it.
package loglines

import (
	"bytes"
	"io"
	"sync"
	"time"
)

// maxBytes is the size of the lines that a Log keeps.
const maxBytes = 256 << 10

// Line is a line of a log, without its end.
type Line struct {
	At   time.Time
	Text []byte
}

// Log keeps the latest lines, up to 256 KiB. The zero value is empty and ready for use. It is safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	lines []Line // in the order of their writes
	first int64  // the number of lines[0]
	size  int    // of all texts
}

// Write appends the lines of p, which the time of the call dates.
func (l *Log) Write(p []byte) (int, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range bytes.Lines(p) {
		text = bytes.Clone(bytes.TrimSuffix(text, []byte("\n")))
		l.lines = append(l.lines, Line{now, text})
		l.size += len(text)
	}
	dropped := 0
	for ; l.size > maxBytes && dropped < len(l.lines)-1; dropped++ {
		l.size -= len(l.lines[dropped].Text)
		l.lines[dropped] = Line{}
	}
	l.lines, l.first = l.lines[dropped:], l.first+int64(dropped)
	return len(p), nil
}

// Reader reads a log from its beginning. It is not safe for concurrent use.
type Reader struct {
	log  *Log
	next int64
}

// Reader returns a reader at the oldest line.
func (l *Log) Reader() *Reader { return &Reader{log: l} }

// Next returns the next line, or io.EOF if there is none yet. A reader that is too slow misses lines.
func (r *Reader) Next() (Line, error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	r.next = max(r.next, r.log.first)
	i := int(r.next - r.log.first)
	if i >= len(r.log.lines) {
		return Line{}, io.EOF
	}
	r.next++
	return r.log.lines[i], nil
}
