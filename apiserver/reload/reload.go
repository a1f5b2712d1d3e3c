// Package reload rereads files that have changed on disk: certificates, CAs and token files are
// replaced while the server runs.
package reload

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// every is how often files are checked, at most, when their content is read.
const every = time.Second

// Files is the parsed content of some files. It is safe for concurrent use.
type Files[T any] struct {
	parse   func(contents [][]byte) (T, error)
	paths   []string
	log     *slog.Logger
	current atomic.Pointer[T]
	looked  atomic.Int64 // when, in Unix nanoseconds

	mu     sync.Mutex
	seen   []os.FileInfo
	failed string // the error that was logged last
}

// Open reads files that must exist and be valid. Later, a change that is invalid is logged, and the
// previous content stays.
func Open[T any](log *slog.Logger, parse func(contents [][]byte) (T, error), paths ...string) (*Files[T], error) {
	f := &Files[T]{parse: parse, paths: paths, log: log}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.read(); err != nil {
		return nil, err
	}
	f.looked.Store(time.Now().UnixNano())
	return f, nil
}

// Current returns the content of the files, at most a second old.
func (f *Files[T]) Current() T {
	now, looked := time.Now().UnixNano(), f.looked.Load()
	if now-looked >= int64(every) && f.looked.CompareAndSwap(looked, now) {
		f.look()
	}
	return *f.current.Load()
}

func (f *Files[T]) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, err := f.read()
	files := strings.Join(f.paths, ", ")
	switch {
	case err != nil && err.Error() != f.failed:
		f.failed = err.Error()
		f.log.Error("a file has changed and cannot be used; what it held before stays", "files", files, "error", err)
	case changed:
		f.failed = ""
		f.log.Info("a file has changed and was read again", "files", files)
	}
}

// read reads the files if one has changed since the last read, whether that failed or not.
func (f *Files[T]) read() (changed bool, err error) {
	now := make([]os.FileInfo, len(f.paths))
	changed = f.seen == nil
	for i, path := range f.paths {
		if now[i], err = os.Stat(path); err != nil {
			return false, fmt.Errorf("looking at a file: %w", err)
		}
		changed = changed || !same(now[i], f.seen[i])
	}
	if !changed {
		return false, nil
	}
	contents := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		if contents[i], err = os.ReadFile(path); err != nil {
			return false, fmt.Errorf("reading a file: %w", err)
		}
	}
	f.seen = now
	value, err := f.parse(contents)
	if err != nil {
		return false, fmt.Errorf("%s: %w", strings.Join(f.paths, ", "), err)
	}
	f.current.Store(&value)
	return true, nil
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
