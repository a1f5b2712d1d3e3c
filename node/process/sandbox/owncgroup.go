//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ownCgroup is a container's cgroup, opened by the container's first process while the host's files are visible.
type ownCgroup struct {
	v2      bool
	folders map[string]int // descriptors by controller; the only key is "" with v2
}

// openOwnCgroup opens the cgroup of this process, and makes it the root of a new cgroup namespace.
func openOwnCgroup(c *Container) (*ownCgroup, error) {
	// EINVAL: the kernel has no cgroup namespaces
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("cgroup namespace: %w", err)
	}
	machine := findCgroups(cgroupRoot)
	own := &ownCgroup{v2: machine.v2, folders: map[string]int{}}
	controllers := machine.controllers
	if machine.v2 {
		controllers = []string{""}
	}
	for i, dir := range machine.folders(c.Cgroup) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		own.folders[controllers[i]] = fd
	}
	return own, nil
}

// show mounts the cgroup, and no other, at the path where programs look for their limits. Only privileged containers
// can write to it. Without a folder at that path, it mounts nothing.
func (o *ownCgroup) show(privileged bool) error {
	if o == nil {
		return nil
	}
	if _, err := os.Stat(cgroupRoot); err != nil {
		return nil
	}
	const safe = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	flags := mountFlags{top: safe}
	if !privileged {
		flags.top |= unix.MOUNT_ATTR_RDONLY
	}
	if !o.v2 {
		if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
			"mode=755,size=64k"); err != nil {
			return fmt.Errorf("%s: %w", cgroupRoot, err)
		}
	}
	for controller, fd := range o.folders {
		if _, err := bind(fd, filepath.Join(cgroupRoot, controller), true, flags); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(cgroupRoot, controller), err)
		}
	}
	if o.v2 {
		return nil
	}
	return unix.Mount("", cgroupRoot, "",
		unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}
