//go:build linux

package process

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// enterRoot makes the container's view of the files and moves into it: the host's root, with all that is written
// kept apart in scratch, own /proc, /dev, /tmp and /run, and the mounts that were asked for. All of it belongs
// to the mount namespace and goes with it.
func enterRoot(c *Container, scratch string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	sources := make([]int, len(c.Mounts))
	for i := range c.Mounts {
		fd, err := openSource(&c.Mounts[i])
		if err != nil {
			return &StartError{fmt.Sprintf("mount %s: %v", c.Mounts[i].Target, err)}
		}
		sources[i] = fd
	}
	root, own, err := overlay(scratch)
	if err != nil {
		return err
	}
	if err := addDisks(root, c.Hide); err != nil {
		return err
	}
	ownFds := map[string]int{}
	for target, dir := range own {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		ownFds[target] = fd
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the old root lies over the new one
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil { // which is below the old root, that "/" as a path does not see
		return err
	}
	if err := systemMounts(c); err != nil {
		return err
	}
	for target, fd := range ownFds {
		if err := bind(fd, target, true, false); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	for _, dir := range c.Hide {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "size=4k,mode=0"); err != nil {
				return fmt.Errorf("hide %s: %w", dir, err)
			}
		}
	}
	if err := bindAll(c.Mounts, sources); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil { // only now: what is detached cannot be bound
		return fmt.Errorf("old root: %w", err)
	}
	return os.Chdir("/")
}

// bindAll makes the mounts, the outer ones first.
func bindAll(mounts []Mount, sources []int) error {
	order := make([]int, len(mounts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(len(filepath.Clean(mounts[a].Target)), len(filepath.Clean(mounts[b].Target)))
	})
	for _, i := range order {
		m := &mounts[i]
		var st unix.Stat_t
		if err := unix.Fstat(sources[i], &st); err != nil {
			return err
		}
		if err := bind(sources[i], filepath.Join("/", m.Target), st.Mode&unix.S_IFMT == unix.S_IFDIR, m.ReadOnly); err != nil {
			return &StartError{fmt.Sprintf("mount %s: %v", m.Target, err)}
		}
	}
	return nil
}

// openSource opens what is to be mounted, while the host's files are in sight.
func openSource(m *Mount) (int, error) {
	fd, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil || m.SubPath == "" {
		return fd, err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Openat2(fd, m.SubPath, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
}

// bind mounts an open file or folder, and makes the place for it where there is none.
func bind(fd int, target string, dir, readOnly bool) error {
	if err := makeTarget(target, dir); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	_ = unix.Close(fd)
	if !readOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

func makeTarget(target string, dir bool) error {
	if dir {
		return os.MkdirAll(target, 0o755)
	}
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	_ = os.Remove(target) // a symbolic link to nowhere
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
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
	"proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs", "pstore",
	"bpf", "configfs", "fusectl", "hugetlbfs", "rpc_pipefs", "binfmt_misc", "nsfs", "ramfs", "autofs", "efivarfs",
}

// addDisks shows the host's other file systems, such as a /home of its own, which the overlay does not reach; read-only.
func addDisks(root string, hide []string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) == 0 || slices.Contains(notDisks, kind[0]) {
			continue
		}
		at := strings.ReplaceAll(fields[4], `\040`, " ")
		if at == "/" || strings.HasPrefix(root+"/", at+"/") || strings.HasPrefix(at, filepath.Dir(root)+"/") || under(at, hide) {
			continue
		}
		target := filepath.Join(root, at)
		if _, err := os.Stat(target); err != nil {
			continue
		}
		if err := unix.Mount(at, target, "", unix.MS_BIND, ""); err != nil {
			continue // mounted over meanwhile, or not ours to see
		}
		if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, ""); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

func under(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}

// devices are what every container may use.
var devices = map[string]uint32{
	"null": 1<<8 | 3, "zero": 1<<8 | 5, "full": 1<<8 | 7, "random": 1<<8 | 8,
	"urandom": 1<<8 | 9, "tty": 5 << 8,
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
	for path, options := range map[string]string{"/dev/pts": "newinstance,ptmxmode=0666,mode=0620", "/dev/shm": "mode=1777,size=64m"} {
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
		"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(to, "/dev/"+link); err != nil {
			return err
		}
	}
	if c.Privileged {
		return nil
	}
	for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"} {
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
