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

// enterRoot makes the container's view of the files and moves into it: the host's root, with all that is written
// kept apart in scratch, own /proc, /dev, /tmp and /run, and the mounts that were asked for. All of it belongs
// to the mount namespace and goes with it. It returns the mounts of the container's own folders.
func enterRoot(c *Container, scratch string, cgroup *ownCgroup) (folders []int, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("private mounts: %w", err)
	}
	sources, places, err := openSources(c)
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
	if err := unix.PivotRoot(".", "."); err != nil { // the old root lies over the new one
		return nil, fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil { // which is below the old root, that "/" as a path does not see
		return nil, err
	}
	if err := systemMounts(c); err != nil {
		return nil, err
	}
	if err := cgroup.show(c.Privileged); err != nil {
		return nil, err
	}
	owned := map[uint64]bool{} // mounts of what the agent keeps for the container, in the folder that is hidden
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
	// The container's mounts can hide /proc and /dev.
	mountinfo, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = mountinfo.Close() }()
	nothing, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(nothing) }()
	usual, err := openDevices()
	if err != nil {
		return nil, err
	}
	hide := c.Hide
	if !c.Privileged {
		hide = slices.Concat(hide, maskedPaths)
	}
	if err := hideInRoot(hide, nothing); err != nil {
		return nil, err
	}
	if err := bindAll(c, sources, owned); err != nil {
		return nil, err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil { // only now: what is detached cannot be bound
		return nil, fmt.Errorf("old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return nil, err
	}
	if err := cover(places, owned, mountinfo, nothing); err != nil {
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

// shareDevices puts the container's own devices in the place of those that the host's /dev has in a volume,
// where none can be opened.
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
			at, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(m.at, name), how)
			if err != nil {
				continue // a part of it is mounted, or something lies over it
			}
			if err = sameDevice(at, devices[name]); err == nil {
				_, err = attach(fd, at, mountFlags{})
			}
			_ = unix.Close(at)
			if err != nil && !errors.Is(err, errOther) {
				return fmt.Errorf("%s of %s: %w", name, m.at, err)
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

// hideInRoot hides paths in the overlay over the host's root, where their files are not those of the host.
func hideInRoot(paths []string, nothing int) error {
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it is not in the overlay
		}
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "size=4k,mode=0")
		} else if err == nil {
			_, err = attach(nothing, fd, mountFlags{})
		}
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// bindAll makes the mounts, the outer ones first, and notes the numbers of those that are the agent's own.
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
			flags.all = unix.MOUNT_ATTR_NODEV // the device of a disk shows what is on it, hidden or not
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

// openSources opens what is to be mounted, while the host's files are in sight, and finds the places to hide.
// What users chose is not in these.
func openSources(c *Container) (sources []int, places []hidden, err error) {
	mounts, err := ownMounts()
	if err != nil {
		return nil, nil, err
	}
	if places, err = hiddenPlaces(c.Hide, mounts); err != nil {
		return nil, nil, err
	}
	for i := range c.Mounts {
		m := &c.Mounts[i]
		fd, err := openSource(m)
		if err == nil && !m.Own {
			err = visible(fd, places, mounts)
		}
		if err != nil {
			return nil, nil, &StartError{fmt.Sprintf("mount %s: %v", m.Target, err)}
		}
		sources = append(sources, fd)
	}
	return sources, places, nil
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

// bind mounts an open file or folder, makes the place for it where there is none, and returns the mount's
// number. It closes fd.
func bind(fd int, target string, dir bool, o mountFlags) (id uint64, err error) {
	defer func() { _ = unix.Close(fd) }()
	at, err := makeTarget(target, dir)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(at) }()
	return attach(fd, at, o)
}

// makeTarget opens the place of a mount, and makes what is missing of it. It follows symbolic links, which
// volumes can have, but none of those of /proc that lead to the files of other processes.
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
	if err = create(); errors.Is(err, unix.EEXIST) { // a symbolic link to nowhere
		if err = unix.Unlinkat(parent, name, 0); err == nil {
			err = create()
		}
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat2(parent, name, how)
}

// ownFolders are the container's alone: nothing of the host's is seen there.
var ownFolders = map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky, "/var/tmp": 0o777 | fs.ModeSticky, "/run": 0o755}

// overlay mounts the host's root with a layer of our own over it. Where the disk cannot bear the layer (it is an
// overlay itself), that is kept in memory.
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

// escape is for the characters that separate an overlay's options and folders.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, ":", `\:`).Replace(path)
}

// notDisks are file systems that are made by the kernel, or that containers have of their own.
var notDisks = []string{
	"proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs",
	"securityfs", "pstore",
	"bpf", "configfs", "fusectl", "hugetlbfs", "rpc_pipefs", "binfmt_misc", "nsfs", "ramfs", "autofs", "efivarfs",
}

// addDisks shows the host's other file systems, such as a /home of its own, which the overlay does not reach;
// read-only.
func addDisks(root string, hide []string) error {
	mounts, err := ownMounts()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		at := m.at
		if slices.Contains(notDisks, m.kind) || at == "/" || strings.HasPrefix(root+"/", at+"/") ||
			strings.HasPrefix(at, filepath.Dir(root)+"/") || under(at, hide) {
			continue
		}
		target := filepath.Join(root, at)
		if _, err := os.Stat(target); err != nil {
			continue
		}
		if err := unix.Mount(at, target, "", unix.MS_BIND, ""); err != nil {
			continue // mounted over meanwhile, or not ours to see
		}
		if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID,
			""); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

func under(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// devices are what every container may use.
var devices = map[string]uint32{
	"null": 1<<8 | 3, "zero": 1<<8 | 5, "full": 1<<8 | 7, "random": 1<<8 | 8,
	"urandom": 1<<8 | 9, "tty": 5 << 8,
}

// maskedPaths show nothing to containers that are not privileged: procMount Default, as other runtimes have it.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
	"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
}

// systemMounts are /proc, /sys and /dev.
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
	for link, to := range map[string]string{
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, "/dev/"+link); err != nil {
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
