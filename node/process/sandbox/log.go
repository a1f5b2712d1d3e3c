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

// Log files have CRI's format, one record per line: TIME STREAM TAG TEXT. The tag P means that the next record of the
// stream continues the line, and F that it does not.
// https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md

const (
	maxLogText = 16 << 10 // bytes of one record
	maxLogSize = 10 << 20 // bytes of a file before it is rotated: the kubelet's containerLogMaxSize
)

// LogPath returns the path of a run's log. A rotated file has the suffix ".1".
func LogPath(podDir, container string, run int32) string {
	return filepath.Join(podDir, "containers", container, fmt.Sprintf("%d.log", run))
}

// logFile is the log of one run. The goroutines that read a container's outputs write to it concurrently.
type logFile struct {
	path string
	now  func() time.Time

	mu   sync.Mutex // guards file and size, and keeps records whole
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

// write adds a record. Errors lose records: a full disk must not stop the container.
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

// copyLines reads an output to its end, logs its lines, and passes all bytes to tee.
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

// LogReader reads a log file that may still be written to. It is not safe for concurrent use.
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

// logEnd is the size of a log's end that is enough for the last lines in a termination message: more than one record.
const logEnd = 64 << 10

// OpenLogEnd opens a log file near its end: at the first complete record of the last 64 KiB.
func OpenLogEnd(path string) (*LogReader, error) {
	l, err := OpenLog(path)
	if err != nil {
		return nil, err
	}
	info, err := l.file.Stat()
	if err == nil && info.Size() > logEnd {
		if _, err = l.file.Seek(-logEnd, io.SeekEnd); err == nil {
			_, err = l.line() // skip the rest of the record before
		}
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// maxRecord limits the length of a record: its text, and the fields before it.
const maxRecord = maxLogText + 128

// line reads to the end of a line of at most maxRecord bytes. An incomplete line is returned with io.EOF.
func (l *LogReader) line() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, errors.New("malformed log record: it has no end")
	}
	return line, err
}

// Next returns the next record, or io.EOF if there is none yet. text is valid until the next call.
func (l *LogReader) Next() (written time.Time, stream string, text []byte, partial bool, err error) {
	line, err := l.line()
	if errors.Is(err, io.EOF) {
		if l.part = append(l.part, line...); len(l.part) > maxRecord { // the rest of it is still being written
			return written, "", nil, false, errors.New("malformed log record: it has no end")
		}
		if l.replaced() {
			return l.Next()
		}
	}
	if err != nil {
		return written, "", nil, false, err
	}
	line = append(l.part, line...) // without a part this is no copy, and valid until the next read
	l.part = nil
	fields := strings.SplitN(strings.TrimSuffix(string(line), "\n"), " ", 4)
	if len(fields) < 4 {
		return written, "", nil, false, fmt.Errorf("malformed log record %q", line)
	}
	if written, err = time.Parse(time.RFC3339Nano, fields[0]); err != nil {
		return written, "", nil, false, fmt.Errorf("malformed log record: %w", err)
	}
	return written, fields[1], []byte(fields[3]), fields[2] == "P", nil
}

// replaced opens the new file after the present one was rotated and read to its end.
func (l *LogReader) replaced() bool {
	now, err := os.Stat(l.path)
	if err != nil || len(l.part) > 0 {
		return false
	}
	current, err := l.file.Stat()
	if err != nil || os.SameFile(now, current) {
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
