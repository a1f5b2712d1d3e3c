package audit

import (
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Old files are next to the log: audit.log is renamed to audit-2026-11-24T13-50-01.123.log, with the suffix .gz if
// it is compressed. kube-apiserver uses the same names.

const (
	backupTime = "2006-01-02T15-04-05.000"
	gzSuffix   = ".gz"
	tmpSuffix  = ".tmp"
)

// backupName returns an unused name. If a millisecond is taken, it uses the next one.
func backupName(path string, now time.Time) string {
	prefix, ext := backupParts(path)
	for ; ; now = now.Add(time.Millisecond) {
		name := prefix + now.UTC().Format(backupTime) + ext
		_, plain := os.Lstat(name)
		_, packed := os.Lstat(name + gzSuffix)
		if errors.Is(plain, fs.ErrNotExist) && errors.Is(packed, fs.ErrNotExist) {
			return name
		}
	}
}

func backupParts(path string) (prefix, ext string) {
	ext = filepath.Ext(path)
	return strings.TrimSuffix(path, ext) + "-", ext
}

// backup is an old file.
type backup struct {
	path string
	at   time.Time
}

// backups lists the old files of a log, the newest first.
func backups(path string) ([]backup, error) {
	prefix, ext := backupParts(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var found []backup
	for _, entry := range entries {
		name := filepath.Join(filepath.Dir(path), entry.Name())
		stamp, ours := strings.CutPrefix(name, filepath.Clean(prefix))
		stamp, whole := strings.CutSuffix(strings.TrimSuffix(stamp, gzSuffix), ext)
		if !ours || !whole || !entry.Type().IsRegular() {
			continue
		}
		if when, err := time.Parse(backupTime, stamp); err == nil {
			found = append(found, backup{name, when})
		}
	}
	slices.SortStableFunc(found, func(a, b backup) int { return b.at.Compare(a.at) })
	return found, nil
}

// tidier compresses and deletes old files in its own goroutine.
type tidier struct {
	LogOptions
	log     *slog.Logger
	wake    chan struct{}
	stop    chan struct{}
	running sync.WaitGroup
}

// newTidier starts a tidier, which first processes the existing files.
func newTidier(o LogOptions, log *slog.Logger) *tidier {
	t := &tidier{LogOptions: o, log: log, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	t.soon()
	t.running.Go(t.run)
	return t
}

func (t *tidier) soon() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *tidier) close() {
	close(t.stop)
	t.running.Wait()
}

func (t *tidier) run() {
	for {
		select {
		case <-t.stop:
			return
		case <-t.wake:
		}
		if err := t.tidy(time.Now()); err != nil {
			t.log.Warn("old audit logs cannot be tidied up", "file", t.Path, "error", err)
		}
	}
}

// tidy deletes the files that exceed the limits of age and number, and compresses the others if enabled.
func (t *tidier) tidy(now time.Time) error {
	list, err := backups(t.Path)
	if err != nil {
		return err
	}
	var errs []error
	for i, b := range list {
		old := t.MaxAge > 0 && now.Sub(b.at) > time.Duration(t.MaxAge)*24*time.Hour
		if old || t.MaxBackups > 0 && i >= t.MaxBackups {
			errs = append(errs, os.Remove(b.path))
			continue
		}
		if t.Compress && !strings.HasSuffix(b.path, gzSuffix) {
			errs = append(errs, t.compress(b.path))
		}
	}
	return errors.Join(errs...)
}

// errStopped aborts a compression when the tidier is closed. The next server repeats it.
var errStopped = errors.New("stopped")

// compress replaces a file with a compressed one. A reader finds at least one of the two at any time.
func (t *tidier) compress(path string) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	temporary := path + gzSuffix + tmpSuffix
	out, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	packer := gzip.NewWriter(out)
	_, err = io.Copy(packer, &untilStopped{from, t.stop})
	err = errors.Join(err, packer.Close(), out.Close())
	if err == nil {
		err = os.Rename(temporary, path+gzSuffix)
	}
	if err != nil {
		_ = os.Remove(temporary)
		if errors.Is(err, errStopped) {
			return nil
		}
		return err
	}
	return os.Remove(path)
}

// untilStopped fails reads once the tidier is closed.
type untilStopped struct {
	io.Reader
	stop <-chan struct{}
}

func (u *untilStopped) Read(b []byte) (int, error) {
	select {
	case <-u.stop:
		return 0, errStopped
	default:
		return u.Reader.Read(b)
	}
}
