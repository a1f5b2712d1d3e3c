package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	// defaultMaxSize is --audit-log-maxsize where it is 0, as in kube-apiserver, in MiB.
	defaultMaxSize = 100
	// lookEvery is how often the file is compared with the one of its name.
	lookEvery = time.Second
)

// logFile appends events to a file, which is rotated when it is full. Another program may rotate it as well: the file
// is opened anew within a second of the first write after that.
type logFile struct {
	LogOptions
	log  *slog.Logger
	tidy *tidier // nil for what is no regular file

	mu     sync.Mutex
	file   *os.File
	size   int64
	torn   bool // the last line has no end
	looked time.Time
}

func openLog(o LogOptions, log *slog.Logger) (output, error) {
	if o.Path == "-" {
		return stdout{}, nil
	}
	l := &logFile{LogOptions: o, log: log}
	if l.MaxSize == 0 {
		l.MaxSize = defaultMaxSize
	}
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, fmt.Errorf("--audit-log-path: %w", err)
	}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("--audit-log-path: %w", err)
	}
	if l.regular() {
		l.tidy = newTidier(o, log)
	}
	return l, nil
}

func (l *logFile) writers() int { return 1 }

// open opens the file. A line that a server could not finish before it was killed stays by itself.
func (l *logFile) open() error {
	file, err := os.OpenFile(l.Path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrPermission) { // one that can only be written
		file, err = os.OpenFile(l.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	}
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return err
	}
	l.file, l.size, l.torn, l.looked = file, info.Size(), false, time.Now()
	if last := []byte{0}; info.Mode().IsRegular() && info.Size() > 0 {
		if _, err := file.ReadAt(last, info.Size()-1); err == nil {
			l.torn = last[0] != '\n'
		}
	}
	return nil
}

func (l *logFile) regular() bool {
	info, err := l.file.Stat()
	return err == nil && info.Mode().IsRegular()
}

// write implements output.
func (l *logFile) write(_ context.Context, lines []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(len(lines)); err != nil {
		return err
	}
	if l.torn {
		if _, err := l.file.Write([]byte{'\n'}); err != nil {
			return err
		}
		l.torn = false
		l.size++
	}
	n, err := l.file.Write(lines)
	l.size += int64(n)
	l.torn = n > 0 && n < len(lines)
	return err
}

// ready makes sure that the file is the one of its name, and has room for so many bytes.
func (l *logFile) ready(n int) error {
	if l.file == nil {
		return l.open()
	}
	if l.tidy == nil {
		return nil
	}
	if now := time.Now(); now.Sub(l.looked) >= lookEvery {
		l.looked = now
		if l.moved() {
			return l.reopen()
		}
	}
	if l.size > 0 && l.size+int64(n) > int64(l.MaxSize)<<20 {
		return l.rotate()
	}
	return nil
}

// moved reports whether the file has another name by now, or none.
func (l *logFile) moved() bool {
	ours, err := l.file.Stat()
	if err != nil {
		return true
	}
	named, err := os.Stat(l.Path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(ours, named)
}

func (l *logFile) reopen() error {
	old := l.file
	l.file = nil
	_ = old.Close() // every line was written by a call of its own, which has reported its error
	return l.open()
}

// rotate gives the file its name among the old ones, and begins another one. A file that cannot be renamed grows on.
func (l *logFile) rotate() error {
	if l.moved() {
		return l.reopen()
	}
	if err := os.Rename(l.Path, backupName(l.Path, time.Now())); err != nil {
		l.log.Error("the audit log cannot be rotated", "file", l.Path, "error", err)
		l.size = 0 // try again when as much has been added
		return nil
	}
	l.tidy.soon()
	return l.reopen()
}

func (l *logFile) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tidy != nil {
		l.tidy.close()
	}
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// stdout is the log "-".
type stdout struct{}

func (stdout) writers() int { return 1 }

func (stdout) write(_ context.Context, lines []byte) error {
	_, err := os.Stdout.Write(lines)
	return err
}

func (stdout) close() error { return nil }
