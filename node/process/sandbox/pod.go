//go:build linux

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pod is the agent's handle of a shim. Its methods are safe for concurrent use.
type Pod struct{ Config }

// Supported returns the reason why this process cannot run containers as processes; nil if it can.
func Supported() error {
	if os.Geteuid() != 0 {
		return errors.New("the process runtime makes namespaces and cgroups, for which it must be root")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			if caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64); err == nil &&
				caps&(1<<unix.CAP_SYS_ADMIN) == 0 {
				return errors.New(
					"the process runtime makes namespaces and mounts, for which it needs the capability SYS_ADMIN")
			}
		}
	}
	return nil
}

// Start starts a pod's shim, or finds the one that an earlier agent started.
func Start(s Config) (*Pod, error) {
	p := &Pod{s}
	if p.Alive() {
		return p, nil
	}
	if err := os.MkdirAll(s.Dir, 0o750); err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(s.Dir, socketName))
	listener, err := withSocket(s.Dir, func(path string) (*net.UnixListener, error) {
		return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	defer func() { _ = listener.Close() }()
	socket, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()
	log, err := os.OpenFile(filepath.Join(s.Dir, "shim.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	sandbox, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	flags := uintptr(unix.CLONE_NEWUTS | unix.CLONE_NEWIPC)
	if s.HostIPC {
		flags &^= unix.CLONE_NEWIPC
	}
	if s.IP != "" {
		flags |= unix.CLONE_NEWNET
	}
	program, err := ownProgram()
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", descriptor(program)), Args: []string{shimName}, Dir: "/", Stderr: log,
		Env:         []string{"SANDBOX=" + string(sandbox), "GOMAXPROCS=2", "GOGC=50"},
		ExtraFiles:  []*os.File{socket},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: flags},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the pod's shim: %w", err)
	}
	go func() { _ = cmd.Wait() }() // ends with the shim; if the agent ends first, init reaps the shim
	return p, nil
}

// Adopt returns the pod whose shim an earlier agent started. The shim may have ended since.
func Adopt(s Config) *Pod { return &Pod{s} }

// Alive reports whether the shim answers.
func (p *Pod) Alive() bool {
	conn, err := dialShim(p.Dir)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Run starts a run of a container. A *StartError is a fault of the container's own command. If ctx ends first, the run
// may have started; calling Run again then succeeds.
func (p *Pod) Run(ctx context.Context, c *Container) error {
	return call(ctx, p.Dir, &request{Op: opStart, Container: c})
}

// Wait waits until a run has ended, or ctx has, and returns the exit. If the shim has ended without leaving an exit
// record, the error is ErrGone.
func (p *Pod) Wait(ctx context.Context, name string, run int32) (*Exit, error) {
	conn, _, files, err := ask(ctx, p.Dir, &request{Op: opWait, Name: name, Run: run})
	if err != nil {
		return p.ended(name, run, err)
	}
	closeAll(files)
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var answer response
	if files, err = receive(conn, &answer); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return p.ended(name, run, ErrGone)
	}
	closeAll(files)
	if answer.Exit == nil {
		return nil, errors.New(answer.Error)
	}
	return answer.Exit, nil
}

// ended returns a run's exit record, or err if there is none.
func (p *Pod) ended(name string, run int32, err error) (*Exit, error) {
	body, failed := os.ReadFile(exitPath(p.Dir, name, run))
	if failed != nil {
		return nil, err
	}
	e := &Exit{}
	return e, json.Unmarshal(body, e)
}

// Signal sends a signal to a run's command.
func (p *Pod) Signal(name string, run int32, s syscall.Signal) error {
	return call(context.Background(), p.Dir, &request{Op: opSignal, Name: name, Run: run, Signal: int(s)})
}

// Dial connects to a port, from within the pod's network.
func (p *Pod) Dial(ctx context.Context, address string, port uint16) (net.Conn, error) {
	if p.IP == "" {
		return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(address, fmt.Sprint(port)))
	}
	conn, _, files, err := ask(ctx, p.Dir, &request{Op: opDial, Address: address, Port: port})
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	defer closeAll(files)
	if len(files) != 1 {
		return nil, errors.New("the shim passed no connection")
	}
	return net.FileConn(files[0])
}

// Streams are the files of a running command. Streams that it does not have are nil; a terminal replaces the other
// three.
type Streams struct {
	Stdin, Stdout, Stderr, Terminal *os.File
	conn                            *net.UnixConn
}

func newStreams(conn *net.UnixConn, names []string, files []*os.File) *Streams {
	s := &Streams{conn: conn}
	for i, f := range files {
		if i >= len(names) {
			_ = f.Close()
			continue
		}
		switch names[i] {
		case "stdin":
			s.Stdin = f
		case "stdout":
			s.Stdout = f
		case "stderr":
			s.Stderr = f
		case "tty":
			s.Terminal = f
		}
	}
	return s
}

// Close closes all files. A command started by Exec is killed if it has not ended.
func (s *Streams) Close() {
	closeAll([]*os.File{s.Stdin, s.Stdout, s.Stderr, s.Terminal})
	_ = s.conn.Close()
}

// Wait returns the exit of a command started by Exec.
func (s *Streams) Wait() (*Exit, error) {
	var answer response
	files, err := receive(s.conn, &answer)
	closeAll(files)
	if err != nil || answer.Exit == nil {
		return nil, errors.Join(errors.New("the command's exit is unknown"), err)
	}
	return answer.Exit, nil
}

// Resize sets the size of a terminal.
func (s *Streams) Resize(width, height uint16) {
	if s.Terminal == nil {
		return
	}
	raw, err := s.Terminal.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
}

// Exec starts a command beside a container's own. Closing the streams ends it.
func (p *Pod) Exec(name string, run int32, args []string, stdin, tty bool) (*Streams, error) {
	conn, answer, files, err := ask(context.Background(), p.Dir, &request{Op: opExec, Name: name, Run: run, Args: args,
		Stdin: stdin, TTY: tty})
	if err != nil {
		return nil, err
	}
	return newStreams(conn, answer.Files, files), nil
}

// Attach joins the streams of a container's own command.
func (p *Pod) Attach(name string, run int32) (*Streams, error) {
	conn, answer, files, err := ask(context.Background(), p.Dir, &request{Op: opAttach, Name: name, Run: run})
	if err != nil {
		return nil, err
	}
	return newStreams(conn, answer.Files, files), nil
}

// CloseStdin closes a container's input for good.
func (p *Pod) CloseStdin(name string, run int32) error {
	return call(context.Background(), p.Dir, &request{Op: opCloseStdin, Name: name, Run: run})
}

// Stop kills the pod's containers and its shim, and removes its cgroup, which is one of the arguments. Logs and exit
// records stay.
func (p *Pod) Stop(ctx context.Context, cgroup ...string) error {
	c := findCgroups(cgroupRoot)
	if err := call(ctx, p.Dir, &request{Op: opQuit}); err != nil && !errors.Is(err, ErrGone) {
		return err
	}
	_ = os.Remove(filepath.Join(p.Dir, socketName))
	var failed error
	for _, name := range cgroup {
		c.kill(name)
		failed = errors.Join(failed, c.remove(name))
	}
	return failed
}

// Remove stops the pod and removes its folder.
func (p *Pod) Remove(ctx context.Context, cgroup ...string) error {
	if err := p.Stop(ctx, cgroup...); err != nil {
		return err
	}
	if err := RemoveMemory(p.Memory); err != nil {
		return err
	}
	if err := unmountBelow(p.Dir); err != nil { // earlier versions had volumes in memory there
		return err
	}
	return os.RemoveAll(p.Dir)
}

// RemoveMemory removes a folder with volumes in memory. It may be repeated.
func RemoveMemory(dir string) error {
	if dir == "" {
		return nil
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// unmountBelow unmounts all mounts within a folder.
func unmountBelow(dir string) error {
	mounts, err := ownMounts()
	if err != nil {
		return err
	}
	var failed error
	for _, m := range mounts {
		if !strings.HasPrefix(m.mountPoint, dir+"/") {
			continue
		}
		if err := unix.Unmount(m.mountPoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			failed = errors.Join(failed, fmt.Errorf("unmount %s: %w", m.mountPoint, err))
		}
	}
	return failed
}

// MountMemory mounts an in-memory file system with at most size bytes; 0 is no limit. It is never swapped if the kernel
// supports that (Linux 6.4).
func MountMemory(dir string, size int64) error {
	options := "mode=0777"
	if size > 0 {
		options += fmt.Sprintf(",size=%d", size)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	}
	return err
}

// PIDs returns the number of processes and threads of a cgroup; 0 if it is unknown.
func PIDs(cgroup string) int64 {
	n, _ := findCgroups(cgroupRoot).pids(cgroup)
	return n
}

// Usage returns the usage of a cgroup: CPU seconds since its creation, and bytes of its working set.
func Usage(cgroup string) (cpuSeconds float64, memory int64, err error) {
	return findCgroups(cgroupRoot).usage(cgroup)
}
