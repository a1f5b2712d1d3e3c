package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// folder is the state folder that daemon and plugin share.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

func (f folder) namespaceFile() string { return f.path("netns") }

// The bytes of daemon.lock that the daemon locks. The kernel releases the locks when the process ends, in whatever way.
const (
	runs  = 0 // locked while the daemon runs
	ready = 1 // locked while containers can be connected
)

func lockOf(kind int16, offset int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: offset, Len: 1}
}

// locked reports whether the daemon has locked a byte.
func (f folder) locked(offset int64) (bool, error) {
	file, err := os.Open(f.path("daemon.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	lock := lockOf(unix.F_WRLCK, offset)
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, lock); err != nil {
		return false, fmt.Errorf("query lock of the daemon: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// namespace opens the router's namespace. It returns nil if there is none.
func (f folder) namespace() (*os.File, error) {
	file, err := os.Open(f.namespaceFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &stat); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("stat network namespace: %w", err)
	}
	if stat.Type != unix.NSFS_MAGIC { // not mounted, or unmounted since
		return nil, file.Close()
	}
	return file, nil
}

// network reads the Network that the daemon published. It returns nil if there is none.
func (f folder) network() (*Network, error) {
	document, err := os.ReadFile(f.path("network.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n := &Network{}
	if err := json.Unmarshal(document, n); err != nil {
		return nil, fmt.Errorf("parse network.json: %w", err)
	}
	return n, nil
}

// write replaces a file atomically.
func write(path string, content []byte, mode fs.FileMode) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(mode), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
	}
	return err
}
