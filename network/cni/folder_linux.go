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

// folder is the one where daemon and plugin meet.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

func (f folder) namespaceFile() string { return f.path("netns") }

// The bytes of daemon.lock that the daemon locks. The locks go with its process, however that ends.
const (
	runs  = 0 // while it runs
	ready = 1 // while containers can be connected
)

func lockOf(kind int16, of int64) *unix.Flock_t {
	return &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: of, Len: 1}
}

// locked reports whether the daemon has locked a byte.
func (f folder) locked(of int64) (bool, error) {
	file, err := os.Open(f.path("daemon.lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	lock := lockOf(unix.F_WRLCK, of)
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, lock); err != nil {
		return false, fmt.Errorf("lock of the daemon: %w", err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// namespace opens the router's; nil where there is none.
func (f folder) namespace() (*os.File, error) {
	file, err := os.Open(f.namespaceFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var of unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &of); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	if of.Type != unix.NSFS_MAGIC { // the mount has gone, or did not come about
		return nil, file.Close()
	}
	return file, nil
}

// network reads what the daemon has written; nil where it has not.
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
		return nil, fmt.Errorf("network.json: %w", err)
	}
	return n, nil
}

// write replaces a file in one step.
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
