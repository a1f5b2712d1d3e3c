//go:build linux

package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// enterRoot makes the container's file system and moves into it: the host's root with an overlay in scratch for writes,
// its own /proc, /dev, /tmp and /run, and the container's mounts. Everything belongs to the mount namespace and ends
// with it. enterRoot returns descriptors of the mounts of the container's own folders.
func enterRoot(c *Container, scratch string, cgroup *ownCgroup) (folders []int, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("private mounts: %w", err)
	}
	sources, masked, err := openSources(c)
	if err != nil {
		return nil, err
	}
	root, own, err := overlay(scratch)
	if err != nil {
		return nil, err
	}
	if err := addDisks(root, c.Hide); err != nil {
		return nil, err
	}
	ownFds := map[string]int{}
	for target, dir := range own {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		ownFds[target] = fd
	}
	if err := unix.Chdir(root); err != nil {
		return nil, err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // stacks the old root over the new one
		return nil, fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil { // "/" is the new root, below the old one, which only "." still reaches
		return nil, err
	}
	if err := systemMounts(c); err != nil {
		return nil, err
	}
	if err := cgroup.show(c.Privileged); err != nil {
		return nil, err
	}
	owned := map[uint64]bool{} // mounts of the agent's folders for the container, which are in a hidden folder
	for target, fd := range ownFds {
		id, err := bind(fd, target, true, mountFlags{})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", target, err)
		}
		owned[id] = true
		mount, err := unix.Open(target, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		folders = append(folders, mount)
	}
	// Open files of /proc and /dev now, because the container's mounts may cover both.
	mountinfo, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = mountinfo.Close() }()
	devNull, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(devNull) }()
	usual, err := openDevices()
	if err != nil {
		return nil, err
	}
	hide := c.Hide
	if !c.Privileged {
		hide = slices.Concat(hide, maskedPaths)
	}
	if err := hideInRoot(hide, devNull); err != nil {
		return nil, err
	}
	if err := bindAll(c, sources, owned); err != nil {
		return nil, err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil { // only after bindAll: detached mounts cannot be bound
		return nil, fmt.Errorf("old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return nil, err
	}
	if err := mask(masked, owned, mountinfo, devNull); err != nil {
		return nil, err
	}
	return folders, shareDevices(mountinfo, usual)
}

// openDevices opens the devices that every container may use.
func openDevices() (map[string]int, error) {
	all := map[string]int{}
	for name := range devices {
		fd, err := unix.Open("/dev/"+name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		all[name] = fd
	}
	return all, nil
}

// shareDevices replaces the standard devices in volumes that contain the host's /dev by the container's own. Devices
// of volumes cannot be opened otherwise.
func shareDevices(mountinfo io.ReadSeeker, usual map[string]int) error {
	mounts, err := readMounts(mountinfo)
	if err != nil {
		return err
	}
	for name, fd := range usual {
		for _, m := range mounts {
			if m.kind != "devtmpfs" {
				continue
			}
			how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
			device, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(m.mountPoint, name), how)
			if err != nil {
				continue // only a part of it is mounted, or another mount covers it
			}
			if err = sameDevice(device, devices[name]); err == nil {
				_, err = attach(fd, device, mountFlags{})
			}
			_ = unix.Close(device)
			if err != nil && !errors.Is(err, errOther) {
				return fmt.Errorf("%s of %s: %w", name, m.mountPoint, err)
			}
		}
		_ = unix.Close(fd)
	}
	return nil
}

var errOther = errors.New("another device")

func sameDevice(fd int, number uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != uint64(number) {
		return errOther
	}
	return nil
}

// hideInRoot hides paths in the overlay over the host's root, where files have other devices and inodes than the
// host's.
func hideInRoot(paths []string, devNull int) error {
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // the overlay has no such path
		}
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "size=4k,mode=0")
		} else if err == nil {
			_, err = attach(devNull, fd, mountFlags{})
		}
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// bindAll makes the container's mounts, outer ones first, and records the IDs of the agent's own mounts in owned.
func bindAll(c *Container, sources []int, owned map[uint64]bool) error {
	order := make([]int, len(c.Mounts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(len(filepath.Clean(c.Mounts[a].Target)), len(filepath.Clean(c.Mounts[b].Target)))
	})
	for _, i := range order {
		m := &c.Mounts[i]
		var st unix.Stat_t
		if err := unix.Fstat(sources[i], &st); err != nil {
			return err
		}
		var flags mountFlags
		if !c.Privileged {
			flags.all = unix.MOUNT_ATTR_NODEV // the device of a disk would expose all its files, hidden ones included
		}
		flags.all |= m.Flags
		if m.ReadOnly && m.Recursive {
			flags.all |= unix.MOUNT_ATTR_RDONLY
		}
		if m.ReadOnly {
			flags.top = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
		}
		id, err := bind(sources[i], filepath.Join("/", m.Target), st.Mode&unix.S_IFMT == unix.S_IFDIR, flags)
		if err != nil {
			return &StartError{fmt.Sprintf("mount %s: %v", m.Target, err)}
		}
		owned[id] = m.Own
	}
	return nil
}

// openSources opens the sources of all mounts, while the host's files are visible, and finds the files to hide. It
// returns an error if a path that users chose is among these.
func openSources(c *Container) (sources []int, masked []maskedPath, err error) {
	mounts, err := ownMounts()
	if err != nil {
		return nil, nil, err
	}
	if masked, err = resolveMasked(c.Hide, mounts); err != nil {
		return nil, nil, err
	}
	for i := range c.Mounts {
		m := &c.Mounts[i]
		fd, err := openSource(m)
		if err == nil && !m.Own {
			err = visible(fd, masked, mounts)
		}
		if err != nil {
			return nil, nil, &StartError{fmt.Sprintf("mount %s: %v", m.Target, err)}
		}
		sources = append(sources, fd)
	}
	return sources, masked, nil
}

// openSource opens the source of a mount.
func openSource(m *Mount) (int, error) {
	fd, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil || m.SubPath == "" {
		return fd, err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Openat2(fd, m.SubPath, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
}

// bind mounts an open file or folder at target, which it makes if necessary, and returns the mount's ID. It closes fd.
func bind(fd int, target string, dir bool, o mountFlags) (id uint64, err error) {
	defer func() { _ = unix.Close(fd) }()
	destination, err := makeTarget(target, dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(destination) }()
	return attach(fd, destination, o)
}

// makeTarget opens the target of a mount, and makes the missing parts of its path. It follows symbolic links, which
// volumes may contain, except those of /proc that lead to the files of other processes.
func makeTarget(path string, dir bool) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, how)
	if !errors.Is(err, unix.ENOENT) || path == "/" {
		return fd, err
	}
	parent, err := makeTarget(filepath.Dir(path), true)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(parent) }()
	name := filepath.Base(path)
	create := func() error {
		if dir {
			return unix.Mkdirat(parent, name, 0o755)
		}
		f, err := unix.Openat(parent, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		return unix.Close(f)
	}
	if err = create(); errors.Is(err, unix.EEXIST) { // a dangling symbolic link
		if err = unix.Unlinkat(parent, name, 0); err == nil {
			err = create()
		}
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat2(parent, name, how)
}

// ownFolders are folders of the container alone, where no files of the host are visible.
var ownFolders = map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky, "/var/tmp": 0o777 | fs.ModeSticky, "/run": 0o755}

// overlay mounts a writable layer over the host's root. If the file system of scratch cannot hold the layer, because it
// is an overlay itself, the layer is in memory.
func overlay(scratch string) (root string, own map[string]string, err error) {
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return "", nil, err
	}
	root = filepath.Join(scratch, "root")
	try := func() error {
		upper, work := filepath.Join(scratch, "upper"), filepath.Join(scratch, "work")
		for _, dir := range []string{root, upper, work} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		options := "lowerdir=/,upperdir=" + escape(upper) + ",workdir=" + escape(work)
		return unix.Mount("overlay", root, "overlay", unix.MS_NODEV, options)
	}
	if err = try(); err != nil {
		if err := unix.Mount("tmpfs", scratch, "tmpfs", unix.MS_NODEV, "mode=700"); err != nil {
			return "", nil, fmt.Errorf("memory for the container's files: %w", err)
		}
		if err = try(); err != nil {
			return "", nil, fmt.Errorf("overlay over the host's root: %w", err)
		}
	}
	own = map[string]string{}
	for target, mode := range ownFolders {
		dir := filepath.Join(scratch, "own", strings.ReplaceAll(target, "/", "_"))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", nil, err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return "", nil, err
		}
		own[target] = dir
	}
	return root, own, nil
}

// escape escapes the characters that separate an overlay's options and folders.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace(path)
}

// notDisks are file systems of the kernel, and file systems that every container has of its own.
var notDisks = []string{
	"proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs",
	"securityfs", "pstore",
	"bpf", "configfs", "fusectl", "hugetlbfs", "rpc_pipefs", "binfmt_misc", "nsfs", "ramfs", "autofs", "efivarfs",
}

// addDisks mounts the host's other file systems read-only, such as a separate /home, because the overlay does not
// include them.
func addDisks(root string, hide []string) error {
	mounts, err := ownMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		path := m.mountPoint
		if slices.Contains(notDisks, m.kind) || path == "/" || strings.HasPrefix(root+"/", path+"/") ||
			strings.HasPrefix(path, filepath.Dir(root)+"/") || under(path, hide) {
			continue
		}
		target := filepath.Join(root, path)
		if _, err := os.Stat(target); err != nil {
			continue
		}
		if err := unix.Mount(path, target, "", unix.MS_BIND, ""); err != nil {
			continue // another mount covers it meanwhile, or the agent may not see it
		}
		if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID,
			""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func under(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// devices are the devices that every container may use, with their numbers.
var devices = map[string]uint32{
	"null": 1<<8 | 3, "zero": 1<<8 | 5, "full": 1<<8 | 7, "random": 1<<8 | 8,
	"urandom": 1<<8 | 9, "tty": 5 << 8,
}

// maskedPaths are hidden from containers that are not privileged: procMount Default, as in other runtimes.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
	"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
}

// systemMounts makes /proc, /sys and /dev.
func systemMounts(c *Container) error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", safe, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", safe|unix.MS_RDONLY, ""); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("/sys: %w", err)
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	for name, number := range devices {
		path := "/dev/" + name
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(number)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for path, options := range map[string]string{"/dev/pts": "newinstance,ptmxmode=0666,mode=0620",
		"/dev/shm": "mode=1777,size=64m"} {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		kind := "devpts"
		if path == "/dev/shm" {
			kind = "tmpfs"
		}
		if err := unix.Mount(kind, path, kind, unix.MS_NOSUID|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	for link, target := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, "/dev/"+link); err != nil {
			return err
		}
	}
	if c.Privileged {
		return nil
	}
	for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|safe, ""); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
