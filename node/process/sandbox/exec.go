//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// exec runs a command in a container's namespaces and cgroup, with its rights. It sends the client files for the
// command's streams and, when the command has ended, its exit. If the client disconnects first, the command is killed.
func (s *shim) exec(conn *net.UnixConn, run *shimRun, r *request) error {
	select {
	case <-run.done:
		return errors.New("container is not running")
	default:
	}
	type started struct {
		cmd   *exec.Cmd
		names []string
		files []*os.File
		err   error
	}
	result := make(chan started)
	go func() { // locks its thread and never unlocks it: the thread enters the container, and ends with the goroutine
		runtime.LockOSThread()
		var b started
		b.cmd, b.names, b.files, b.err = s.startExec(run, r)
		result <- b
	}()
	b := <-result
	if b.err != nil {
		return b.err
	}
	err := send(conn, &response{Files: b.names}, b.files...)
	closeAll(b.files)
	if err != nil {
		_ = b.cmd.Process.Kill()
	}
	go func() {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			_ = b.cmd.Process.Kill() // has no effect once the command has ended
		}
	}()
	_ = b.cmd.Wait() // ProcessState has the result
	exit := exitOf(b.cmd.ProcessState)
	return send(conn, &response{Exit: &exit})
}

// startExec starts the command. It moves the calling thread into the container, so the thread must be locked and must
// not be used for anything else.
func (s *shim) startExec(run *shimRun, r *request) (cmd *exec.Cmd, names []string, files []*os.File, err error) {
	var remote []*os.File // the command's ends
	defer func() {
		closeAll(remote)
		if err != nil {
			closeAll(files)
		}
	}()
	attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: run.UID, Gid: run.GID, Groups: run.Groups},
		Setsid: true}
	if err := enterContainer(run); err != nil {
		return nil, nil, nil, err
	}
	dir := run.Dir
	if dir == "" {
		dir = "/"
	}
	if err := enterFolder(dir); err != nil { // the command inherits this thread's working directory
		return nil, nil, nil, fmt.Errorf("chdir to %q: %w", dir, err)
	}
	path, err := findProgram(r.Args[0], run.Env)
	if err != nil {
		return nil, nil, nil, err
	}
	cmd = &exec.Cmd{Path: path, Args: r.Args, Env: run.Env, SysProcAttr: attr}
	if r.TTY {
		master, slave, err := openTerminal()
		if err != nil {
			return nil, nil, nil, err
		}
		attr.Setctty = true
		remote, files, names = append(remote, slave), append(files, master), append(names, "tty")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.Env = withDefault(cmd.Env, "TERM", "xterm")
	} else {
		for _, name := range []string{"stdin", "stdout", "stderr"} {
			if name == "stdin" && !r.Stdin {
				continue
			}
			read, write, err := os.Pipe()
			if err != nil {
				return nil, nil, files, err
			}
			near, far := read, write
			switch name {
			case "stdin":
				near, far = write, read
				cmd.Stdin = far
			case "stdout":
				cmd.Stdout = far
			case "stderr":
				cmd.Stderr = far
			}
			files, remote, names = append(files, near), append(remote, far), append(names, name)
		}
	}
	for _, f := range remote {
		if err := f.Chown(int(run.UID), int(run.GID)); err != nil {
			return nil, nil, files, err
		}
	}
	if err := restrict(&run.Container); err != nil {
		return nil, nil, files, err
	}
	if err := startHeld(cmd, func(pid int) error { return s.admit(run, pid) }); err != nil {
		return nil, nil, files, err
	}
	return cmd, names, files, nil
}

// admit applies a container's limits to a process that runs beside the container's own command.
func (s *shim) admit(run *shimRun, pid int) error {
	setOOMScore(fmt.Sprintf("/proc/%d", pid), run.OOMScore)
	if err := s.cgroups.enter(run.Cgroup, pid); err != nil && run.Limits.bind() {
		return err
	}
	return nil
}

// enterContainer moves this thread, and so the process that it will start, into the container's namespaces.
func enterContainer(run *shimRun) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns(2) requires that a thread does not share its root
		return err
	}
	spaces := []struct {
		name string
		flag int
		file *os.File
	}{{name: "cgroup", flag: unix.CLONE_NEWCGROUP}, {name: "pid", flag: unix.CLONE_NEWPID},
		{name: "mnt", flag: unix.CLONE_NEWNS}}
	for i := range spaces { // open all before entering any, while /proc is the machine's
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", run.pid, spaces[i].name))
		if errors.Is(err, os.ErrNotExist) && spaces[i].name == "cgroup" {
			continue // the kernel has no cgroup namespaces
		}
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		spaces[i].file = f
	}
	for _, space := range spaces {
		if space.file == nil {
			continue
		}
		if err := unix.Setns(int(space.file.Fd()), space.flag); err != nil {
			return fmt.Errorf("enter %s namespace: %w", space.name, err)
		}
	}
	return nil
}

// startHeld starts a command from this thread, and lets it run only after prepare has returned. prepare runs on another
// thread, which sees the machine's files instead of a container's. The command is held with ptrace: it has executed its
// program, but not yet its first instruction.
func startHeld(cmd *exec.Cmd, prepare func(pid int) error) error {
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	prepared := make(chan error, 1)
	err := waitStopped(pid)
	if err == nil {
		go func() { prepared <- prepare(pid) }()
		err = <-prepared
	}
	if err == nil {
		if err = unix.PtraceDetach(pid); errors.Is(err, unix.ESRCH) { // it was killed meanwhile
			err = nil
		}
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return err
}

// waitStopped waits until a process stops or ends. WNOWAIT leaves the result for the later cmd.Wait.
func waitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openTerminal makes a pseudo terminal in the container that this thread is in. It gets the other end from the kernel,
// not from /dev/pts, which the container may have replaced.
func openTerminal() (master, slave *os.File, err error) {
	how := &unix.OpenHow{Flags: unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, "/dev/ptmx", how)
	if err != nil {
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("terminal: %w", err)
	}
	other, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		_ = master.Close()
		return nil, nil, fmt.Errorf("terminal: %w", errno)
	}
	return master, os.NewFile(other, "pts"), nil
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds a program as execvp does, with the PATH of env.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := defaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		file := filepath.Join("/", dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

func withDefault(env []string, name, value string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, name+"=") {
			return env
		}
	}
	return append(env[:len(env):len(env)], name+"="+value)
}

// tee copies a container's output to all attached clients. A client that reads too slowly misses some of it, because
// the container does not wait for clients.
type tee struct {
	mu      sync.Mutex
	closed  bool                  // no further clients may attach; guarded by mu
	clients []map[string]*os.File // the pipes of each client, by stream; guarded by mu
}

func (t *tee) write(stream string, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := 0; i < len(t.clients); i++ {
		f := t.clients[i][stream]
		if f == nil {
			continue
		}
		// The pipe does not block: EAGAIN means that it is full, any other error that the reader has left.
		if _, err := unix.Write(descriptor(f), b); err != nil && !errors.Is(err, unix.EAGAIN) {
			for _, f := range t.clients[i] {
				_ = f.Close()
			}
			t.clients = append(t.clients[:i], t.clients[i+1:]...)
			i--
		}
	}
}

func (t *tee) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, one := range t.clients {
		for _, f := range one {
			_ = f.Close()
		}
	}
	t.clients = nil
}

// attach sends a client the container's streams.
func (run *shimRun) attach(conn *net.UnixConn) error {
	var names []string
	var files []*os.File
	defer func() { closeAll(files) }()
	streams := []string{"stdout", "stderr"}
	if run.TTY {
		streams = streams[:1]
	}
	pipes := map[string]*os.File{}
	for _, name := range streams {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return err
		}
		pipes[name] = os.NewFile(uintptr(p[1]), name)
		names, files = append(names, name), append(files, os.NewFile(uintptr(p[0]), name))
	}
	run.tee.mu.Lock()
	defer run.tee.mu.Unlock()
	if run.tee.closed {
		for _, f := range pipes {
			_ = f.Close()
		}
		return errors.New("container is not running")
	}
	run.tee.clients = append(run.tee.clients, pipes)
	if run.stdin != nil {
		fd, err := unix.FcntlInt(uintptr(descriptor(run.stdin)), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			name := "stdin"
			if run.TTY {
				name = "tty"
			}
			names, files = append(names, name), append(files, os.NewFile(uintptr(fd), name))
		}
	}
	return send(conn, &response{Files: names}, files...)
}

func (run *shimRun) closeStdin() {
	run.tee.mu.Lock()
	defer run.tee.mu.Unlock()
	if run.stdin != nil {
		_ = run.stdin.Close()
		run.stdin = nil
	}
}
