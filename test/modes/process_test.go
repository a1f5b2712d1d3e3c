//go:build e2e && linux

package modes

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience bounds each wait. These tests measure no times.
const patience = 90 * time.Second

// launch is how a program is started.
type launch struct {
	env  []string
	user *syscall.Credential
	// files are inherited from the third descriptor on.
	files []*os.File
	// program replaces coxswain.
	program string
}

// process is a program that ends with its test at the latest.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    output
	exited chan struct{} // closed when the process has ended
}

// output collects the lines of a process. Each write closes the channel of changed.
type output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	written chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.written != nil {
		close(o.written)
		o.written = nil
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// changed returns the output, and a channel that is closed when there is more.
func (o *output) changed() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.written == nil {
		o.written = make(chan struct{})
	}
	return o.buf.String(), o.written
}

// start starts coxswain. Its output is shown if the test fails.
func (l launch) start(t *testing.T, args ...string) *process {
	t.Helper()
	program := l.program
	if program == "" {
		program = coxswain
	}
	p := &process{t: t, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), l.env...)
	p.cmd.ExtraFiles = l.files
	if l.user != nil {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: l.user}
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if text := p.out.String(); t.Failed() {
			t.Logf("%s (pid %d) printed:\n%s", strings.Join(args, " "), p.cmd.Process.Pid,
				text[max(0, len(text)-8<<10):])
		}
	})
	return p
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.exited
}

// interrupt ends the process as Ctrl-C does, and requires that it ends well.
func (p *process) interrupt() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-p.exited:
		require.Zero(p.t, p.cmd.ProcessState.ExitCode(), p.out.String())
	case <-time.After(patience):
		require.FailNow(p.t, "the process does not end")
	}
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// prints waits until the process has printed a text.
func (p *process) prints(text string) {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		printed, more := p.out.changed()
		if strings.Contains(printed, text) {
			return
		}
		select {
		case <-more:
		case <-p.exited:
			require.Contains(p.t, p.out.String(), text, "the process has ended")
			return
		case <-timeout:
			require.FailNow(p.t, "not printed: "+text)
		}
	}
}

// eventually requires that a condition comes true that no watch shows.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 50*time.Millisecond, what)
}

// freePort returns a port that was free a moment ago, and none twice.
func freePort(t *testing.T, host string) string {
	t.Helper()
	for {
		ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		require.NoError(t, ln.Close())
		if _, loaded := givenPorts.LoadOrStore(port, true); !loaded {
			return port
		}
	}
}

var givenPorts sync.Map

// dataDir returns a folder that does not exist yet, in one that is open to all users.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "coxswain-modes-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "data")
}

func needRoot(t *testing.T, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: " + why + " takes root")
	}
}
