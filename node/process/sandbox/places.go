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

// mounted is a line of mountinfo (proc_pid_mountinfo(5)).
type mounted struct {
	id     uint64
	device string
	root   string // the file or folder of its file system that is mounted
	at     string
	kind   string
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
		all = append(all, mounted{id: id, device: fields[2], root: unescape(fields[3]), at: unescape(fields[4]),
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

// unescape reads the octal numbers that stand for white space and backslashes.
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

// place is where a file or folder is, whatever path or mount leads there: a path within a file system.
type place struct{ device, path string }

// has reports whether another place is this one or below it.
func (p place) has(other place) bool {
	return p.device == other.device && under(other.path, []string{p.path})
}

// placeOf is the place of an open file of this process' mount namespace.
func placeOf(fd int, mounts []mounted) (place, error) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return place{}, err
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return place{}, err
	}
	for _, m := range mounts {
		if m.id == st.Mnt_id && under(path, []string{m.at}) {
			return place{m.device, filepath.Join(m.root, strings.TrimPrefix(path, strings.TrimSuffix(m.at, "/")))}, nil
		}
	}
	return place{}, fmt.Errorf("%s is not among the mounts of this machine", path)
}

// hidden is a file or folder that containers must not see.
type hidden struct {
	place
	device, inode uint64 // by which it is known again
}

// hiddenPlaces are those of paths; what is not there needs no hiding.
func hiddenPlaces(paths []string, mounts []mounted) ([]hidden, error) {
	var all []hidden
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("hide %s: %w", path, err)
		}
		var h hidden
		var st unix.Stat_t
		if h.place, err = placeOf(fd, mounts); err == nil {
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

// memoryWithin are the file systems in memory that are mounted in what is hidden, such as volumes of Secrets. They are
// places of their own.
func memoryWithin(paths []string, mounts []mounted) (all []hidden) {
	for _, m := range mounts {
		if m.kind != "tmpfs" || !under(m.at, paths) {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(m.at, &st) == nil {
			all = append(all, hidden{place: place{m.device, m.root}, device: uint64(st.Dev), inode: st.Ino})
		}
	}
	return all
}

var errHidden = errors.New("it is in a folder or file of the node agent's that containers do not see")

// Visible reports whether containers may see a path of this machine, of which parts may be missing: nil where it is not
// in a file or folder to hide, whatever symbolic links and mounts lead there.
func Visible(path string, hide []string) error {
	mounts, err := ownMounts()
	if err != nil {
		return err
	}
	places, err := hiddenPlaces(hide, mounts)
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
		return visible(fd, places, mounts)
	}
}

// visible is Visible for an open file.
func visible(fd int, places []hidden, mounts []mounted) error {
	at, err := placeOf(fd, mounts)
	if err != nil {
		return err
	}
	for _, h := range places {
		if h.has(at) {
			return errHidden
		}
	}
	return nil
}

// cover hides places from a container wherever its mounts show them, but for its own mounts, which may be in
// them. It is done last, in the container's root. mountinfo was opened there before the container's mounts,
// of which one can be /proc.
func cover(places []hidden, own map[uint64]bool, mountinfo io.ReadSeeker, nothing int) error {
	mounts, err := readMounts(mountinfo)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		for _, h := range places {
			target := m.at
			switch {
			case m.device != h.place.device || own[m.id] && under(m.root, []string{h.path}):
				continue
			case under(h.path, []string{m.root}):
				target = filepath.Join(m.at, strings.TrimPrefix(h.path, strings.TrimSuffix(m.root, "/")))
			case !under(m.root, []string{h.path}):
				continue
			}
			if err := coverOne(target, &h, under(h.path, []string{m.root}), nothing); err != nil {
				return fmt.Errorf("hide %s: %w", target, err)
			}
		}
	}
	return nil
}

// coverOne mounts nothing over a path, if that leads to what is to be hidden. exact says that it has to be
// just that, and not something within it.
func coverOne(target string, h *hidden, exact bool, nothing int) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, target, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil // another mount lies over it
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
	_, err = attach(nothing, fd, mountFlags{})
	return err
}

// mountFlags are MOUNT_ATTR_… of a mount: of all that is mounted in it as well, and of itself.
type mountFlags struct{ all, top uint64 }

// attach mounts an open file or folder, with all that is mounted in it, on another, and returns the new mount's number.
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
