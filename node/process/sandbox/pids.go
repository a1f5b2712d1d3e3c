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

// Containers of a pod that share a PID namespace live in one whose first process is the reaper: it takes up
// processes whose parents have ended, and all end with it. It ends with the shim.

// startReaper makes the pod's PID namespace.
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
	go func() { // ends with the shim, or with the namespace, and then the pod has nothing left
		_ = cmd.Wait()
		fmt.Fprintln(os.Stderr, "shim: the pod's PID namespace has ended")
	}()
	return nil
}

// reaperMain waits for children until it is killed. As the first process of its namespace it gets none of the signals
// that containers send. It is nobody in an empty folder: a process that may trace it gains nothing.
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
	// A change of user takes the death signal away.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// sharedPIDs is the PID namespace that a container is to share; nil where it has its own or the host's.
func (s *shim) sharedPIDs(run *shimRun) (*os.File, error) {
	of := 0
	switch {
	case run.HostPID:
	case s.reaper != nil:
		of = s.reaper.Pid
	case run.Target != "":
		target := s.latest(run.Target)
		if target == nil {
			return nil, &StartError{fmt.Sprintf("target container %q is not running", run.Target)}
		}
		of = target.pid
	}
	if of == 0 {
		return nil, nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", of))
	if err != nil {
		return nil, fmt.Errorf("PID namespace: %w", err)
	}
	return f, nil
}

// latest is the run of a container that is on, or nil.
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
	if err := unix.Setns(int(pids.Fd()), unix.CLONE_NEWPID); err != nil { // of the children
		return fmt.Errorf("enter PID namespace: %w", err)
	}
	err = cmd.Start()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWPID); back != nil {
		fmt.Fprintln(os.Stderr, "shim: leave PID namespace:", back)
		os.Exit(1) // what it would start next would be somebody else's; the kernel ends what runs
	}
	return err
}
