// Package datadir keeps a data directory private: only its user may read it, and only one process at a time uses it.
package datadir

import (
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// KubeconfigSuffix ends the names of the kubeconfigs in a data directory.
const KubeconfigSuffix = ".kubeconfig"

// Lock makes the data directory private and takes its lock, which one process at a time can hold. It returns an error
// if another process holds it.
func Lock(dir string) (unlock func(), err error) {
	if err := KeepPrivate(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("--data-dir: %s is in use by another coxswain%s", dir, etcd.LockHolder(f.Name()))
	}
	return func() { _ = f.Close() }, nil
}

// KeepPrivate makes the data directory with mode 0700 if it does not exist. In an existing one it corrects and logs
// modes that let other users read or write. It returns an error if the directory belongs to another user, which could
// change the modes back, or if it is open to others and holds other files, which may need it to be open.
func KeepPrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 && !emptyOrOurs(dir) {
		return fmt.Errorf("--data-dir: %s is open to others (mode %04o) and holds other files: name a folder that "+
			"is for coxswain alone",
			dir, info.Mode().Perm())
	}
	if err := closeToOthers(dir, info); err != nil {
		return err
	}
	kubeconfigs, err := filepath.Glob(filepath.Join(dir, "*"+KubeconfigSuffix))
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	for _, root := range append(kubeconfigs, filepath.Join(dir, "pki")) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			return closeToOthers(path, info)
		})
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// emptyOrOurs reports whether a folder is empty, or holds only the files of a data directory.
func emptyOrOurs(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && (len(entries) == 0 || slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return slices.Contains([]string{"lock", "pki", "etcd"}, e.Name())
	}))
}

// closeToOthers removes the permissions of group and others from a file or folder of this user. A link
// has none.
func closeToOthers(path string, info fs.FileInfo) error {
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	// Root may do everything anyway.
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("--data-dir: %s belongs to the user with the ID %d, and this process runs as %d: run it "+
			"as that user, or change the owner",
			path, owner, os.Geteuid())
	}
	mode := info.Mode().Perm()
	if mode&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(path, mode&^0o077); err != nil {
		return fmt.Errorf("--data-dir: %s is open to others (mode %04o): %w", path, mode, err)
	}
	slog.Warn("removed other users' permissions from a part of the data directory",
		"path", path, "mode", fmt.Sprintf("%04o", mode), "now", fmt.Sprintf("%04o", mode&^0o077))
	return nil
}
