//go:build linux

package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mounted is one line of mountinfo (proc_pid_mountinfo(5)).
type mounted struct {
	id         uint64
	device     string
	root       string // the mounted file or folder, as a path within its file system
	mountPoint string
	kind       string
}

// readMounts reads mountinfo from its beginning.
func readMounts(mountinfo io.ReadSeeker) ([]mounted, error) {
	if _, err := mountinfo.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var all []mounted
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) == 0 {
			continue
		}
		id, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("mountinfo: %w", err)
		}
		all = append(all, mounted{id: id, device: fields[2], root: unescape(fields[3]), mountPoint: unescape(fields[4]),
			kind: kind[0]})
	}
	return all, lines.Err()
}

func ownMounts() ([]mounted, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readMounts(f)
}

// unescape replaces octal escapes of white space and backslashes.
func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// location identifies a file or folder independently of mounts and links: as a path within a file system.
type location struct{ device, path string }

// has reports whether another location is this one or below it.
func (l location) has(other location) bool {
	return l.device == other.device && under(other.path, []string{l.path})
}

// locationOf returns the location of an open file of this process' mount namespace.
func locationOf(fd int, mounts []mounted) (location, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return location{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return location{}, err
	}
	for _, m := range mounts {
		if m.id == st.Mnt_id && under(path, []string{m.mountPoint}) {
			inMount := strings.TrimPrefix(path, strings.TrimSuffix(m.mountPoint, "/"))
			return location{m.device, filepath.Join(m.root, inMount)}, nil
		}
	}
	return location{}, fmt.Errorf("%s is not among the mounts of this machine", path)
}

// maskedPath is a file or folder that containers must not see.
type maskedPath struct {
	location
	device, inode uint64 // identify the file under any path
}

// resolveMasked returns the files and folders of paths. Paths that do not exist need no mask.
func resolveMasked(paths []string, mounts []mounted) ([]maskedPath, error) {
	var all []maskedPath
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("hide %s: %w", path, err)
		}
		var h maskedPath
		var st unix.Stat_t
		if h.location, err = locationOf(fd, mounts); err == nil {
			err = unix.Fstat(fd, &st)
		}
		_ = unix.Close(fd)
		if err != nil {
			return nil, fmt.Errorf("hide %s: %w", path, err)
		}
		h.device, h.inode = uint64(st.Dev), st.Ino
		all = append(all, h)
	}
	return append(all, memoryWithin(paths, mounts)...), nil
}

// memoryWithin returns the in-memory file systems mounted in hidden folders, such as volumes of Secrets. Each is a
// masked path of its own.
func memoryWithin(paths []string, mounts []mounted) (all []maskedPath) {
	for _, m := range mounts {
		if m.kind != "tmpfs" || !under(m.mountPoint, paths) {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(m.mountPoint, &st) == nil {
			all = append(all, maskedPath{location: location{m.device, m.root}, device: uint64(st.Dev), inode: st.Ino})
		}
	}
	return all
}

var errMasked = errors.New("it is in a folder or file of the node agent's that containers do not see")

// Visible returns an error if containers must not see a path of this machine, because it is in one of the files or
// folders in hide. It resolves symbolic links and mounts. Parts of the path may be missing.
func Visible(path string, hide []string) error {
	mounts, err := ownMounts()
	if err != nil {
		return err
	}
	masked, err := resolveMasked(hide, mounts)
	if err != nil {
		return err
	}
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)) && path != filepath.Dir(path) {
			continue
		}
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return visible(fd, masked, mounts)
	}
}

// visible is Visible for an open file.
func visible(fd int, masked []maskedPath, mounts []mounted) error {
	opened, err := locationOf(fd, mounts)
	if err != nil {
		return err
	}
	for _, h := range masked {
		if h.has(opened) {
			return errMasked
		}
	}
	return nil
}

// mask hides paths from a container under every mount that shows them, except the container's own mounts, which may
// lie in hidden folders. It is the last step, in the container's root. mountinfo must have been opened there before the
// container's mounts were made, because one of them may cover /proc.
func mask(masked []maskedPath, own map[uint64]bool, mountinfo io.ReadSeeker, devNull int) error {
	mounts, err := readMounts(mountinfo)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		for _, h := range masked {
			target := m.mountPoint
			switch {
			case m.device != h.location.device || own[m.id] && under(m.root, []string{h.path}):
				continue
			case under(h.path, []string{m.root}):
				target = filepath.Join(m.mountPoint, strings.TrimPrefix(h.path, strings.TrimSuffix(m.root, "/")))
			case !under(m.root, []string{h.path}):
				continue
			}
			if err := maskMount(target, &h, under(h.path, []string{m.root}), devNull); err != nil {
				return fmt.Errorf("hide %s: %w", target, err)
			}
		}
	}
	return nil
}

// maskMount hides target if it is the hidden file h, or with exact false a file within h: a folder under an empty file
// system, a file under /dev/null, whose descriptor is devNull.
func maskMount(target string, h *maskedPath, exact bool, devNull int) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, target, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // another mount covers it
		}
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if uint64(st.Dev) != h.device || exact && st.Ino != h.inode {
		return nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.Mount("tmpfs", target, "tmpfs", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, "size=4k,mode=0")
	}
	_, err = attach(devNull, fd, mountFlags{})
	return err
}

// mountFlags are MOUNT_ATTR_… of a mount: all applies to nested mounts too, top to the mount itself.
type mountFlags struct{ all, top uint64 }

// attach mounts an open file or folder, including nested mounts, on another, and returns the new mount's ID.
func attach(source, target int, flags mountFlags) (id uint64, err error) {
	tree, err := unix.OpenTree(source, "",
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return 0, fmt.Errorf("open_tree: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	for recursive, set := range map[uint]uint64{unix.AT_RECURSIVE: flags.all, 0: flags.top} {
		if set == 0 {
			continue
		}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|recursive,
			&unix.MountAttr{Attr_set: set}); err != nil {
			return 0, fmt.Errorf("mount_setattr: %w", err)
		}
	}
	if err := unix.MoveMount(tree, "", target, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return 0, fmt.Errorf("move_mount: %w", err)
	}
	var st unix.Statx_t
	err = unix.Statx(tree, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err
}
