//go:build linux

package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Containers of a pod that share a PID namespace live in one whose first process is the reaper. It reaps orphaned
// processes. All processes of the namespace end with it, and it ends with the shim.

// startReaper starts the reaper in the pod's new PID namespace.
func (s *shim) startReaper() error {
	empty := filepath.Join(s.sandbox.Dir, "empty")
	if err := os.MkdirAll(empty, 0o555); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Dir = []string{reaperName}, []string{"GOMAXPROCS=1"}, empty
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL, Setsid: true}
	failed := make(chan error)
	s.spawn <- func() { failed <- cmd.Start() }
	if err := <-failed; err != nil {
		return fmt.Errorf("PID namespace: %w", err)
	}
	s.reaper = cmd.Process
	go func() { // ends with the shim, or with the namespace, which ends all containers of the pod
		_ = cmd.Wait()
		fmt.Fprintln(os.Stderr, "shim: the pod's PID namespace has ended")
	}()
	return nil
}

// reaperMain waits for children until it is killed. As the first process of its namespace it does not receive the
// signals that containers send. It runs as the user nobody in an empty root, so that tracing it gains no rights.
func reaperMain() int {
	runtime.LockOSThread()
	if err := becomeNobody(); err != nil {
		return 1
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		<-ended
	}
}

func becomeNobody() error {
	const nobody = 65534
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(nobody); err != nil {
		return err
	}
	if err := syscall.Setuid(nobody); err != nil {
		return err
	}
	// A change of user clears the parent death signal.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// sharedPIDs returns the PID namespace that a container shares; nil if it has its own or the host's.
func (s *shim) sharedPIDs(run *shimRun) (*os.File, error) {
	pid := 0
	switch {
	case run.HostPID:
	case s.reaper != nil:
		pid = s.reaper.Pid
	case run.Target != "":
		target := s.latest(run.Target)
		if target == nil {
			return nil, &StartError{fmt.Sprintf("target container %q is not running", run.Target)}
		}
		pid = target.pid
	}
	if pid == 0 {
		return nil, nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil, fmt.Errorf("PID namespace: %w", err)
	}
	return f, nil
}

// latest returns the running run of a container, or nil.
func (s *shim) latest(name string) *shimRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, run := range s.runs {
		if run.Name != name {
			continue
		}
		select {
		case <-run.done:
		default:
			return run
		}
	}
	return nil
}

// startWithin starts a process in a PID namespace; nil is this thread's. The caller has locked the thread.
func startWithin(cmd *exec.Cmd, pids *os.File) error {
	if pids == nil {
		return cmd.Start()
	}
	own, err := os.Open("/proc/thread-self/ns/pid")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if err := unix.Setns(int(pids.Fd()), unix.CLONE_NEWPID); err != nil { // applies to children only
		return fmt.Errorf("enter PID namespace: %w", err)
	}
	err = cmd.Start()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWPID); back != nil {
		fmt.Fprintln(os.Stderr, "shim: leave PID namespace:", back)
		os.Exit(1) // later processes would start in a foreign namespace; the kernel ends all containers
	}
	return err
}
