//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ownCgroup is a container's cgroup as its first process has it open while the host's files are in sight.
type ownCgroup struct {
	v2      bool
	folders map[string]int // by controller; with v2 there is one, ""
}

// openOwnCgroup opens the cgroup that this process is in, and makes it the root of those that it knows of by name.
func openOwnCgroup(c *Container) (*ownCgroup, error) {
	// a kernel without cgroup namespaces
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("cgroup namespace: %w", err)
	}
	of := findCgroups(cgroupRoot)
	own := &ownCgroup{v2: of.v2, folders: map[string]int{}}
	controllers := of.controllers
	if of.v2 {
		controllers = []string{""}
	}
	for i, dir := range of.folders(c.Cgroup) {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		own.folders[controllers[i]] = fd
	}
	return own, nil
}

// show mounts the cgroup where programs look for their limits, and nothing of the others. Only privileged
// containers can write to it. Where there is no such folder, nothing is shown.
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
