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
	// defaultMaxSize replaces a --audit-log-maxsize of 0, as in kube-apiserver. It is in MiB.
	defaultMaxSize = 100
	// lookEvery is the interval between checks that the path still leads to the open file.
	lookEvery = time.Second
)

// logFile appends events to a file, which it rotates when it is full. Another program may rotate it as well:
// logFile reopens the path within a second of the first write after that.
type logFile struct {
	LogOptions
	log  *slog.Logger
	tidy *tidier // nil unless the file is a regular one

	mu     sync.Mutex
	file   *os.File
	size   int64
	torn   bool // whether the last line is incomplete
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

// open opens the file. If the last line is incomplete because a server was killed, the next write first ends that
// line.
func (l *logFile) open() error {
	file, err := os.OpenFile(l.Path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrInvalid) || errors.Is(err, fs.ErrPermission) { // a file that can only be written
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

// ready ensures that the file is still at its path and has room for n bytes.
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

// moved reports whether the file was renamed or deleted.
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
	_ = old.Close() // each write has already reported its error
	return l.open()
}

// rotate renames the file to a backup and starts a new one. If renaming fails, the file keeps growing.
func (l *logFile) rotate() error {
	if l.moved() {
		return l.reopen()
	}
	if err := os.Rename(l.Path, backupName(l.Path, time.Now())); err != nil {
		l.log.Error("the audit log cannot be rotated", "file", l.Path, "error", err)
		l.size = 0 // retry when as much has been added
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

// stdout is the output for "-".
type stdout struct{}

func (stdout) writers() int { return 1 }

func (stdout) write(_ context.Context, lines []byte) error {
	_, err := os.Stdout.Write(lines)
	return err
}

func (stdout) close() error { return nil }
