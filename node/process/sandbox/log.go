package sandbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Log files have CRI's format, a line for each line: TIME STREAM TAG TEXT, where the tag P says that the line is
// continued by the next of its stream, and F that it is not.
// https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md

const (
	maxLogText = 16 << 10 // bytes of one record
	maxLogSize = 10 << 20 // of a file, after which it is put aside: the kubelet's containerLogMaxSize
)

// LogPath is where the log of a run is; what was put aside has ".1" after it.
func LogPath(podDir, container string, run int32) string {
	return filepath.Join(podDir, "containers", container, fmt.Sprintf("%d.log", run))
}

// logFile is written by the goroutines that read a container's outputs.
type logFile struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	file *os.File
	size int64
}

func openLogFile(path string, now func() time.Time) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	return &logFile{path: path, now: now, file: f}, nil
}

// write adds a record. What cannot be written is lost: a full disk must not stop the container.
func (l *logFile) write(stream string, text []byte, partial bool) {
	tag := "F"
	if partial {
		tag = "P"
	}
	record := l.now().UTC().AppendFormat(make([]byte, 0, len(text)+48), time.RFC3339Nano)
	record = append(record, ' ')
	record = append(record, stream...)
	record = append(append(append(append(record, ' '), tag...), ' '), text...)
	record = append(record, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > maxLogSize {
		l.rotate()
	}
	n, _ := l.file.Write(record)
	l.size += int64(n)
}

func (l *logFile) rotate() {
	l.size = 0
	if os.Rename(l.path, l.path+".1") != nil {
		return
	}
	if f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640); err == nil {
		_ = l.file.Close()
		l.file = f
	}
}

func (l *logFile) close() { _ = l.file.Close() }

// copyLines reads an output to its end and logs its lines; tee, too, gets what was read.
func (l *logFile) copyLines(stream string, from io.Reader, tee func([]byte)) {
	r := bufio.NewReaderSize(from, maxLogText)
	for {
		text, err := r.ReadSlice('\n')
		if len(text) > 0 {
			tee(text)
			line, whole := bytes.CutSuffix(text, []byte("\n"))
			l.write(stream, line, !whole && errors.Is(err, bufio.ErrBufferFull))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// LogReader reads a log file, which may still be written. It is not safe for concurrent use.
type LogReader struct {
	path string
	file *os.File
	r    *bufio.Reader
	part []byte
}

// OpenLog opens a log file.
func OpenLog(path string) (*LogReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &LogReader{path: path, file: f, r: bufio.NewReaderSize(f, maxRecord)}, nil
}

// logEnd is how much of a log has the last lines that are worth a termination message: a record and more.
const logEnd = 64 << 10

// OpenLogEnd opens a log file at a record near its end: at the first one of the last 64 KiB that is whole.
func OpenLogEnd(path string) (*LogReader, error) {
	l, err := OpenLog(path)
	if err != nil {
		return nil, err
	}
	info, err := l.file.Stat()
	if err == nil && info.Size() > logEnd {
		if _, err = l.file.Seek(-logEnd, io.SeekEnd); err == nil {
			_, err = l.line() // the rest of the record before
		}
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// maxRecord is how long a record can be: its text, and the words before it.
const maxRecord = maxLogText + 128

// line reads to the end of a line, of at most maxRecord bytes. The part of a line that has no end yet
// is returned with io.EOF.
func (l *LogReader) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errors.New("malformed log record: it has no end")
	}
	return line, err
}

// Next is the next record; io.EOF where there is none yet. text is valid until the next call.
func (l *LogReader) Next() (at time.Time, stream string, text []byte, partial bool, err error) {
	line, err := l.line()
	if errors.Is(err, io.EOF) {
		if l.part = append(l.part, line...); len(l.part) > maxRecord { // the rest of it is being written
			return at, "", nil, false, errors.New("malformed log record: it has no end")
		}
		if l.replaced() {
			return l.Next()
		}
	}
	if err != nil {
		return at, "", nil, false, err
	}
	line = append(l.part, line...) // a copy where there is a part; otherwise it is valid until the next read
	l.part = nil
	fields := strings.SplitN(strings.TrimSuffix(string(line), "\n"), " ", 4)
	if len(fields) < 4 {
		return at, "", nil, false, fmt.Errorf("malformed log record %q", line)
	}
	if at, err = time.Parse(time.RFC3339Nano, fields[0]); err != nil {
		return at, "", nil, false, fmt.Errorf("malformed log record: %w", err)
	}
	return at, fields[1], []byte(fields[3]), fields[2] == "P", nil
}

// replaced opens the file anew after it was put aside and read to its end.
func (l *LogReader) replaced() bool {
	now, err := os.Stat(l.path)
	if err != nil || len(l.part) > 0 {
		return false
	}
	mine, err := l.file.Stat()
	if err != nil || os.SameFile(now, mine) {
		return false
	}
	f, err := os.Open(l.path)
	if err != nil {
		return false
	}
	_ = l.file.Close()
	l.file = f
	l.r.Reset(f)
	return true
}

// Close closes the file.
func (l *LogReader) Close() error { return l.file.Close() }
