//go:build linux

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// Names (argv[0]) under which the agent's binary runs as a shim or as a process in a container. They are internal.
const (
	shimName   = "coxswain-node-shim"
	initName   = "coxswain-node-init"
	pauseName  = "coxswain-node-pause"
	reaperName = "coxswain-node-reaper"
)

// Main must be the first call of main, and of TestMain in tests that run processes. In a process that this package has
// started it does the work of that process and does not return; otherwise it returns at once.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	// Goroutines that enter namespaces give up their threads. The first thread of a process cannot end, and would keep
	// a namespace open: reserve it for this goroutine, which enters none.
	runtime.LockOSThread()
	switch os.Args[0] {
	case shimName:
		os.Exit(shimMain())
	case initName:
		os.Exit(initMain())
	case pauseName:
		os.Exit(pauseMain())
	case reaperName:
		os.Exit(reaperMain())
	}
}

// shim is the state of the process that holds a pod.
type shim struct {
	sandbox Config
	clock   clock.PassiveClock
	cgroups *cgroups
	spawn   chan func() // runs on one thread; the kernel ends the containers when that thread ends
	reaper  *os.Process // the first process of the pod's PID namespace, if its containers share one
	// router is the network namespace of the pod's router, which exists while this file is open; nil if there is none.
	// Guarded by mu.
	router *os.File

	mu   sync.Mutex
	runs map[string]*shimRun // by runKey; guarded by mu
}

// shimRun is the shim's state of one run of a container.
type shimRun struct {
	Container
	pid    int
	shares bool     // shares its PID namespace with other processes
	stdin  *os.File // the end to write to, or the terminal; nil if there is none; guarded by tee.mu
	log    *logFile
	tee    tee
	done   chan struct{} // closed once exit is set
	exit   Exit
}

func shimMain() int {
	runtime.LockOSThread() // keep the first thread for this goroutine: threads that enter containers must end
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	s := &shim{clock: clock.RealClock{}, cgroups: findCgroups(cgroupRoot), spawn: make(chan func()),
		runs: map[string]*shimRun{}}
	listener, err := s.begin()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shim:", err)
		return 1
	}
	go func() {
		runtime.LockOSThread()
		for f := range s.spawn {
			f()
		}
	}()
	if s.sandbox.SharePIDs {
		if err := s.startReaper(); err != nil {
			fmt.Fprintln(os.Stderr, "shim:", err)
			return 1
		}
	}
	go s.watchFolder()
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			fmt.Fprintln(os.Stderr, "shim:", err)
			return 1
		}
		go s.serve(conn)
	}
}

// folderEvery is the interval at which a shim checks that its pod's folder exists.
const folderEvery = 10 * time.Second

// watchFolder ends the pod when its folder is gone: the agent's data was removed, so no agent will ever adopt the
// containers. It removes the pod's volumes in memory as well.
func (s *shim) watchFolder() {
	ticker := clock.RealClock{}.NewTicker(folderEvery)
	defer ticker.Stop()
	for range ticker.C() {
		if _, err := os.Stat(s.sandbox.Dir); errors.Is(err, os.ErrNotExist) {
			s.quit()
			if err := RemoveMemory(s.sandbox.Memory); err != nil {
				fmt.Fprintln(os.Stderr, "shim:", err)
			}
			_ = os.Remove(filepath.Dir(s.sandbox.Memory)) // the agent's, if this was its last pod
			os.Exit(0)
		}
	}
}

// begin reads the agent's input: the listener is descriptor 3, the Config is in the environment.
func (s *shim) begin() (*net.UnixListener, error) {
	if err := json.Unmarshal([]byte(os.Getenv("SANDBOX")), &s.sandbox); err != nil {
		return nil, err
	}
	f := os.NewFile(3, "listener")
	l, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	if s.sandbox.Hostname != "" {
		if err := unix.Sethostname([]byte(s.sandbox.Hostname)); err != nil {
			return nil, fmt.Errorf("hostname: %w", err)
		}
	}
	if s.sandbox.IP != "" {
		if err := loopback(s.sandbox.IP); err != nil {
			return nil, fmt.Errorf("address: %w", err)
		}
	}
	return l.(*net.UnixListener), nil
}

func (s *shim) serve(conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	var r request
	passed, err := receive(conn, &r)
	if err != nil {
		return
	}
	if r.Op == opNetwork {
		err = s.shareNetwork(conn, passed)
	} else {
		closeAll(passed)
		err = s.do(conn, &r)
	}
	if err != nil {
		var start *StartError
		_ = send(conn, &response{Error: err.Error(), Start: errors.As(err, &start)})
	}
}

func (s *shim) do(conn *net.UnixConn, r *request) error {
	if r.Op == opStart {
		if err := s.start(r.Container); err != nil {
			return err
		}
		return send(conn, &response{})
	}
	if r.Op == opDial {
		return dialPort(conn, net.JoinHostPort(r.Address, strconv.Itoa(int(r.Port))))
	}
	if r.Op == opSysctls {
		if err := setSysctls(r.Sysctls); err != nil {
			return err
		}
		return send(conn, &response{})
	}
	if r.Op == opQuit {
		s.quit()
		_ = send(conn, &response{})
		os.Exit(0)
	}
	run := s.run(r.Name, r.Run)
	if run == nil {
		return fmt.Errorf("no run %d of container %s", r.Run, r.Name)
	}
	switch r.Op {
	case opWait:
		if err := send(conn, &response{}); err != nil {
			return err
		}
		<-run.done
		return send(conn, &response{Exit: &run.exit})
	case opSignal:
		if err := unix.Kill(run.pid, unix.Signal(r.Signal)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return send(conn, &response{})
	case opExec:
		return s.exec(conn, run, r)
	case opAttach:
		return run.attach(conn)
	case opCloseStdin:
		run.closeStdin()
		return send(conn, &response{})
	}
	return fmt.Errorf("unknown request %q", r.Op)
}

func runKey(name string, run int32) string { return name + "/" + strconv.Itoa(int(run)) }

func (s *shim) run(name string, run int32) *shimRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[runKey(name, run)]
}

// start starts a run of a container. It returns once the command runs, or an error if it cannot.
func (s *shim) start(c *Container) error {
	if s.run(c.Name, c.Run) != nil {
		return nil // an agent that ended before it could record this has started the run
	}
	dir := filepath.Join(s.sandbox.Dir, "containers", c.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	_ = os.Remove(exitPath(s.sandbox.Dir, c.Name, c.Run))
	removeRun(s.sandbox.Dir, c.Name, c.Run-2)
	log, err := openLogFile(LogPath(s.sandbox.Dir, c.Name, c.Run), s.clock.Now)
	if err != nil {
		return err
	}
	run := &shimRun{Container: *c, log: log, done: make(chan struct{})}
	started := s.clock.Now()
	wait, err := s.launch(run)
	if err != nil {
		log.close()
		s.clean(run)
		return err
	}
	s.mu.Lock()
	delete(s.runs, runKey(c.Name, c.Run-1)) // its exit record remains
	s.runs[runKey(c.Name, c.Run)] = run
	s.mu.Unlock()
	go func() {
		state := wait()
		run.exit = exitOf(state)
		run.exit.Started, run.exit.At = started, s.clock.Now()
		run.exit.OOMKilled = s.cgroups.oomKills(run.Cgroup) > 0 && run.exit.Code != 0
		log.close()
		s.clean(run)
		if err := writeExit(s.sandbox.Dir, run.Name, run.Run, &run.exit); err != nil {
			fmt.Fprintln(os.Stderr, "shim:", err)
		}
		run.closeStdin()
		close(run.done)
	}()
	return nil
}

// launch starts the container's first process and copies its outputs to the log. wait returns when the process and all
// its outputs have ended.
func (s *shim) launch(run *shimRun) (wait func() *os.ProcessState, err error) {
	conn, remote, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	var ends []*os.File // files of the new process, which the shim closes after the start
	defer func() { closeAll(ends) }()
	ends = append(ends, remote)
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Dir = []string{initName}, []string{"GOMAXPROCS=1"}, "/"
	cmd.ExtraFiles = []*os.File{remote}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
		Setsid: true}
	pids, err := s.sharedPIDs(run)
	if err != nil {
		return nil, err
	}
	if pids != nil {
		defer func() { _ = pids.Close() }()
	}
	if run.shares = pids != nil || run.HostPID; run.shares {
		cmd.SysProcAttr.Cloneflags &^= unix.CLONE_NEWPID
	}
	if pids != nil {
		// os/exec takes a parent outside of the PID namespace for dead; initMain sets the signal itself
		cmd.SysProcAttr.Pdeathsig = 0
	}
	outputs := map[string]*os.File{}
	defer func() {
		if err != nil {
			for _, r := range outputs {
				_ = r.Close()
			}
			run.closeStdin()
		}
	}()
	if !run.TTY {
		for name, target := range map[string]*io.Writer{"stdout": &cmd.Stdout, "stderr": &cmd.Stderr} {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			outputs[name], *target = r, w
			ends = append(ends, w)
		}
		if run.Stdin {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			cmd.Stdin, run.stdin = r, w
			ends = append(ends, r)
		}
	}
	for _, f := range ends[1:] { // so that the container's user can open /dev/stdout
		if err := f.Chown(int(run.UID), int(run.GID)); err != nil {
			return nil, err
		}
	}
	if err := s.cgroups.create(run.Cgroup, run.Limits); err != nil && run.Limits.bind() {
		return nil, err
	}
	failed := make(chan error)
	s.spawn <- func() { failed <- startWithin(cmd, pids) }
	if err := <-failed; err != nil {
		return nil, err
	}
	closeAll(ends) // the process's end of the socket closes when it executes the command
	ends = nil
	run.pid = cmd.Process.Pid
	terminal, err := s.instruct(conn, run)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	if terminal != nil {
		run.stdin = terminal
		outputs["stdout"] = terminal
	}
	var reading sync.WaitGroup
	for name, r := range outputs {
		reading.Go(func() {
			run.log.copyLines(name, r, func(b []byte) { run.tee.write(name, b) })
			if !run.TTY {
				_ = r.Close()
			}
		})
	}
	return func() *os.ProcessState {
		_ = cmd.Wait() // ProcessState has the result
		if run.shares {
			s.cgroups.kill(run.Cgroup) // without a PID namespace of its own, its children do not end with it
		}
		reading.Wait() // all processes with the outputs open have ended
		run.tee.close()
		return cmd.ProcessState
	}, nil
}

// instruct puts the new process into its cgroup, sends it the order, and waits until it has executed the container's
// command. It returns the container's terminal, if it has one.
func (s *shim) instruct(conn *net.UnixConn, run *shimRun) (*os.File, error) {
	failed := s.cgroups.enter(run.Cgroup, run.pid)
	if failed != nil && run.Limits.bind() {
		return nil, failed
	}
	if err := send(conn, &order{run.Container, s.sandbox.Dir, failed == nil}); err != nil {
		return nil, err
	}
	var terminal *os.File
	for {
		var answer response
		files, err := receive(conn, &answer)
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET): // exec closes the socket
			return terminal, nil
		case err != nil:
			return nil, err
		case answer.Error != "":
			closeAll(files)
			if answer.Start {
				return nil, &StartError{answer.Error}
			}
			return nil, errors.New(answer.Error)
		case len(files) == 1:
			terminal = files[0]
		}
	}
}

func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	local := os.NewFile(uintptr(fds[0]), "local")
	defer func() { _ = local.Close() }()
	conn, err := net.FileConn(local)
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return conn.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "remote"), nil
}

func exitOf(state *os.ProcessState) Exit {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return Exit{Code: 128 + int32(status.Signal()), Signal: int32(status.Signal())}
	}
	return Exit{Code: int32(state.ExitCode())}
}

// clean removes a run's cgroup and its writable layer.
func (s *shim) clean(run *shimRun) {
	s.cgroups.kill(run.Cgroup)
	_ = s.cgroups.remove(run.Cgroup) // one that is still busy is removed with the pod
	_ = os.RemoveAll(scratchDir(s.sandbox.Dir, run.Name, run.Run))
}

// scratchDir returns the folder of the files that a run writes to its root.
func scratchDir(podDir, container string, run int32) string {
	return filepath.Join(podDir, "containers", container, strconv.Itoa(int(run))+".root")
}

func exitPath(podDir, container string, run int32) string {
	return filepath.Join(podDir, "containers", container, strconv.Itoa(int(run))+".exit")
}

// MessagePath returns the path of a run's termination message.
func MessagePath(podDir, container string, run int32) string {
	return filepath.Join(podDir, "containers", container, strconv.Itoa(int(run))+".message")
}

// removeRun removes the files of a run that are no longer needed, because a later run has ended as well.
func removeRun(podDir, container string, run int32) {
	log := LogPath(podDir, container, run)
	for _, path := range []string{log, log + ".1", exitPath(podDir, container, run),
		MessagePath(podDir, container, run)} {
		_ = os.Remove(path)
	}
}

func writeExit(podDir, container string, run int32, e *Exit) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	path := exitPath(podDir, container, run)
	if err := os.WriteFile(path+".new", body, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// quit ends all containers and waits for them.
func (s *shim) quit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, run := range s.runs {
		_ = unix.Kill(run.pid, unix.SIGKILL)
	}
	for _, run := range s.runs {
		<-run.done
	}
	for _, run := range s.runs {
		RemoveEmpty(filepath.Dir(run.Cgroup)) // the pod's cgroup
	}
}

func dialPort(conn *net.UnixConn, address string) error {
	target, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	f, err := target.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return send(conn, &response{Files: []string{"conn"}}, f)
}
