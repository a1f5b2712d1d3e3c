//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ownProgram opens the program of this process for starting shims, which start all their processes from their own
// /proc/self/exe. A container can reach one of these through /proc/PID/exe: as its command or the command's
// interpreter, in a pause, or while a process enters the container. It must not be able to write to the program or
// change its mode (CVE-2019-5736).
//
// The file is reached through a read-only mount that is in no mount namespace: it was made detached, and the descriptor
// that held it is closed. The kernel changes flags only of detached mounts and of mounts in the caller's namespace, so
// even root cannot make this one writable. A sealed memfd would also do, but would take the program's size in memory
// for each agent that has pods. A visible mount would be left behind by an agent that is killed.
var ownProgram = sync.OnceValues(func() (*os.File, error) {
	fd, err := openReadOnly("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("make the agent's program read-only for containers: %w", err)
	}
	return os.NewFile(uintptr(fd), "program"), nil
})

// leastProgramFD is above the descriptors that a new process inherits, which are put in place before it executes the
// program.
const leastProgramFD = 100

func openReadOnly(path string) (int, error) {
	file, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(file) }()
	tree, err := unix.OpenTree(file, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open_tree: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // takes the mount out of its namespace
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}); err != nil {
		return -1, fmt.Errorf("mount_setattr: %w", err)
	}
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", tree), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(opened) }()
	return unix.FcntlInt(uintptr(opened), unix.F_DUPFD_CLOEXEC, leastProgramFD)
}

// findProgram finds a container's command, for a thread that is in the container but has more rights. It follows no
// link of /proc to the program of a process outside of the container. If another process replaces the command after
// this check, the replacement runs with the container's rights only.
func findProgram(name string, env []string) (string, error) {
	path, err := lookPath(name, env)
	if err != nil {
		return "", err
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ELOOP) {
		return "", fmt.Errorf("exec: %q: links of /proc to other processes' files are not followed", name)
	}
	if err != nil { // includes /proc/self, which does not exist for a thread outside of the PID namespace
		return "", fmt.Errorf("exec: %q: %w", name, err)
	}
	return path, unix.Close(fd)
}
