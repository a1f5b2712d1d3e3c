package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Host is the daemon's side of the state folder.
type Host struct {
	folder
	locked *os.File
}

// ErrInUse reports that containers have addresses outside the Node's subnets.
var ErrInUse = errors.New("containers have addresses of the subnets that the Node had before")

// Open opens a state folder for this process alone, until Close.
func Open(dir string) (*Host, error) {
	h := &Host{folder: folder(dir)}
	if err := h.own(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var err error
	if h.locked, err = os.OpenFile(h.path("daemon.lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := h.lock(runs); err != nil {
		_ = h.locked.Close()
		return nil, fmt.Errorf("%s: another daemon has it: %w", dir, err)
	}
	return h, nil
}

// own creates the folder, or checks that no other user can change its content.
func (h *Host) own() error {
	if err := os.MkdirAll(string(h.folder), 0o700); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(string(h.folder), &stat); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() {
		return errors.New("it is no folder of this process's user")
	}
	if err := os.Chmod(string(h.folder), 0o700); err != nil {
		return err
	}
	return os.MkdirAll(h.path("addresses"), 0o700)
}

func (h *Host) lock(offset int64) error {
	return unix.FcntlFlock(h.locked.Fd(), unix.F_OFD_SETLK, lockOf(unix.F_WRLCK, offset))
}

// Namespace opens the router's namespace that an earlier daemon kept. It returns nil if there is none.
func (h *Host) Namespace() (*os.File, error) { return h.namespace() }

// Keep mounts the router's namespace, so that it outlives all processes that use it.
func (h *Host) Keep(namespace *os.File) error {
	file, err := os.OpenFile(h.namespaceFile(), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	_ = file.Close()
	source := fmt.Sprintf("/proc/self/fd/%d", namespace.Fd())
	if err := unix.Mount(source, h.namespaceFile(), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount network namespace at %s: %w", h.namespaceFile(), err)
	}
	return nil
}

// drop unmounts the router's namespace.
func (h *Host) drop() error {
	for {
		err := unix.Unmount(h.namespaceFile(), unix.MNT_DETACH)
		switch {
		case err == nil: // there may be another mount below it
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			if err := os.Remove(h.namespaceFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		default:
			return fmt.Errorf("unmount network namespace: %w", err)
		}
	}
}

// Admit prepares for the Node's subnets. If they differ from those of an earlier daemon, the Node was recreated, and
// the old subnets may belong to another Node: Admit drops the router. While containers are connected to it, Admit
// returns ErrInUse instead.
func (h *Host) Admit(subnets []netip.Prefix) error {
	before, err := h.network()
	if err != nil {
		return err
	}
	if before == nil || slices.Equal(before.Subnets, subnets) {
		return nil
	}
	taken, err := addresses{h.folder}.all()
	if err != nil {
		return err
	}
	if len(taken) > 0 {
		return fmt.Errorf("%w: %d of %v, and now it has %v", ErrInUse, len(taken), before.Subnets, subnets)
	}
	if err := h.drop(); err != nil {
		return err
	}
	return os.Remove(h.path("network.json"))
}

// Publish lets the plugin connect containers from now on, until Withdraw or the end of the process.
func (h *Host) Publish(n Network) error {
	document, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	if err := write(h.path("network.json"), append(document, '\n'), 0o600); err != nil {
		return err
	}
	return h.lock(ready)
}

// Withdraw stops the plugin from connecting containers. Connected containers stay connected.
func (h *Host) Withdraw() error {
	return unix.FcntlFlock(h.locked.Fd(), unix.F_OFD_SETLK, lockOf(unix.F_UNLCK, ready))
}

// Close releases the folder. The network stays.
func (h *Host) Close() {
	everything := &unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart} // a child may still have the file open
	_ = unix.FcntlFlock(h.locked.Fd(), unix.F_OFD_SETLK, everything)
	_ = h.locked.Close()
}

// Remove removes the network from the machine, with all connections of containers, and closes the Host.
func (h *Host) Remove() error {
	defer h.Close()
	if err := h.drop(); err != nil {
		return err
	}
	return os.RemoveAll(string(h.folder))
}
