//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is a program that a test has started, and that ends with the test at the latest.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    output
	exited chan struct{} // closed when the process has ended, after err is set
	err    error
}

// output collects the output of a process.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// start starts coxswain. Its output is logged if the test fails.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startProgram(t, coxswain, args...)
}

func startProgram(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %v (pid %d) printed:\n%s", filepath.Base(program), args, p.cmd.Process.Pid, tail(p.out.String(), 8<<10))
		}
	})
	return p
}

// kill ends the process like kill -9, even a stopped one, and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.exited
}

// interrupt ends the process like Ctrl-C, and requires a successful exit, soon.
func (p *process) interrupt() {
	p.t.Helper()
	p.signal(syscall.SIGINT)
	p.waitExit(5 * time.Second)
	require.NoError(p.t, p.err, "the exit code after an interrupt")
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

func (p *process) waitExit(limit time.Duration) {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.t.Fatalf("the process has not ended within %v", limit)
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

// eventually requires that the condition becomes true within the limit. It polls often, because most conditions take
// milliseconds.
func eventually(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

// givenPorts are the ports that freePort has returned.
var givenPorts sync.Map

// freePort returns a port that was free a moment ago, for programs that cannot choose one themselves. It never returns
// a port twice: the kernel may offer one again before its program listens.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		require.NoError(t, ln.Close())
		if _, loaded := givenPorts.LoadOrStore(port, true); !loaded {
			return port
		}
	}
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// dataDir returns the path of a folder that does not exist yet, as at a user's first start.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "coxswain-e2e-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir + "/data"
}
