//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// order describes the container that a new process becomes.
type order struct {
	Container
	PodDir   string
	InCgroup bool // the process is in the container's cgroup
}

// initMain runs in the first process of a container, in its new namespaces, until it executes the container's command.
// Descriptor 3 is a socket to the shim: the order comes in, a terminal or an error goes out.
func initMain() int {
	runtime.LockOSThread() // rights are per thread, and this thread executes the command
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return 1
	}
	f := os.NewFile(3, "shim")
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return 1
	}
	conn := c.(*net.UnixConn)
	var o order
	passed, err := receive(conn, &o)
	closeAll(passed)
	if err == nil {
		err = become(conn, &o)
	}
	var start *StartError
	_ = send(conn, &response{Error: err.Error(), Start: errors.As(err, &start)})
	return 1
}

// become turns this process into the container's command. It returns only if that fails.
func become(conn *net.UnixConn, o *order) error {
	c := &o.Container
	program, err := os.Open("/proc/self/exe") // before a mount of the container can cover it
	if err != nil {
		return err
	}
	setOOMScore("/proc/self", c.OOMScore) // while /proc is the machine's
	var own *ownCgroup
	if o.InCgroup {
		var err error
		if own, err = openOwnCgroup(c); err != nil {
			return err
		}
	}
	folders, err := enterRoot(c, scratchDir(o.PodDir, c.Name, c.Run), own)
	if err != nil {
		return err
	}
	if c.TTY {
		if err := takeTerminal(conn, c); err != nil {
			return err
		}
	}
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	if fd, err := makeTarget(filepath.Join("/", dir), true); err == nil {
		_ = unix.Close(fd)
	} else if !errors.Is(err, syscall.EROFS) {
		return &StartError{fmt.Sprintf("workingDir %q: %v", dir, err)}
	}
	if c.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("readOnlyRootFilesystem: %w", err)
		}
		for _, fd := range folders { // by descriptor, because other mounts may cover them now
			if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH,
				&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
				return fmt.Errorf("readOnlyRootFilesystem: %w", err)
			}
		}
	}
	if err := restrict(c); err != nil {
		return err
	}
	if err := setUser(c); err != nil {
		return err
	}
	// A change of user clears the parent death signal.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	if err := enterFolder(dir); err != nil {
		return &StartError{fmt.Sprintf("chdir to cwd (%q) set in config.json failed: %v", dir, err)}
	}
	if len(c.Args) == 0 {
		return becomePause(conn, program, c.StopSignal)
	}
	path, err := findProgram(c.Args[0], c.Env)
	if err != nil {
		return &StartError{err.Error()}
	}
	err = syscall.Exec(path, c.Args, c.Env)
	return &StartError{fmt.Sprintf("exec: %q: %v", c.Args[0], err)}
}

// enterFolder changes this thread's working directory. The thread still has rights that the container does not have, so
// it follows no link of /proc to the files of a process outside of the container.
func enterFolder(dir string) error {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, how)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fchdir(fd)
}

// takeTerminal makes a terminal the controlling terminal of this process, and sends its other end to the shim.
func takeTerminal(conn *net.UnixConn, c *Container) error {
	master, slave, err := openTerminal()
	if err != nil {
		return err
	}
	if err := slave.Chown(int(c.UID), int(c.GID)); err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(int(slave.Fd()), fd, 0); err != nil {
			return err
		}
	}
	if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	err = send(conn, &response{Files: []string{"tty"}}, master)
	_ = master.Close()
	_ = slave.Close()
	return err
}

// restrict drops the rights that the container does not have, for this thread and the processes that it starts.
func restrict(c *Container) error {
	if c.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", err)
		}
	}
	if c.Privileged {
		return nil
	}
	for number := range unix.CAP_LAST_CAP + 1 {
		if slices.Contains(c.Capabilities, number) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil &&
			!errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("capability %d: %w", number, err)
		}
	}
	if c.Seccomp {
		return confine(c.Capabilities)
	}
	return nil
}

// setOOMScore sets a process's oom_score_adj; proc is the process's folder in /proc. Errors are ignored: an agent may
// lack the right to lower a score.
func setOOMScore(proc string, score int32) {
	f, err := os.OpenFile(proc+"/oom_score_adj", os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString(strconv.Itoa(int(score)))
	_ = f.Close()
}

// setUser changes the user and groups of this thread for good.
func setUser(c *Container) error {
	groups := c.Groups
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	for _, call := range []struct {
		name    string
		trap    uintptr
		a, b, c uintptr
	}{
		{"setgroups", unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0},
		{"setresgid", unix.SYS_SETRESGID, uintptr(c.GID), uintptr(c.GID), uintptr(c.GID)},
		{"setresuid", unix.SYS_SETRESUID, uintptr(c.UID), uintptr(c.UID), uintptr(c.UID)},
	} {
		if _, _, errno := unix.RawSyscall(call.trap, call.a, call.b, call.c); errno != 0 {
			return fmt.Errorf("%s: %w", call.name, errno)
		}
	}
	runtime.KeepAlive(groups)
	return nil
}
