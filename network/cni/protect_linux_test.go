package cni_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/cni"
)

// ofPod sets the arguments that Kubernetes runtimes pass to plugins.
func (c *container) ofPod(name string) *container {
	c.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name},
		{"K8S_POD_INFRA_CONTAINER_ID", c.ContainerID}, {"K8S_POD_UID", "uid-" + name}}
	return c
}

// newProtectedMachine starts a machine with a daemon that answers the plugin with protect.
func newProtectedMachine(t *testing.T, protect func(*machine, cni.Pod, []netip.Addr) error,
	subnets ...string) *machine {
	t.Helper()
	m := newMachine(t, subnets...)
	m.stop()
	m.protect = func(_ context.Context, pod cni.Pod, addresses []netip.Addr) error { return protect(m, pod, addresses) }
	m.serve(subnets...)
	return m
}

func TestPlugin_ConnectsAPodOnceItsPoliciesAreInForce(t *testing.T) {
	t.Parallel()
	questions := make(chan string, 9)
	m := newProtectedMachine(t, func(m *machine, pod cni.Pod, addresses []netip.Addr) error {
		questions <- fmt.Sprintf("%s/%s %s %v, %d connected", pod.Namespace, pod.Name, pod.UID, addresses, m.cables())
		return nil
	}, "10.1.0.0/24", "fd00:1::/64")
	web := m.container("web").ofPod("web")
	_, err := web.add()
	require.NoError(t, err)
	require.Equal(t, "default/web uid-web [10.1.0.2 fd00:1::2], 0 connected", <-questions)
	require.Equal(t, 1, m.cables())

	_, addresses := m.connected("in-no-pod")
	require.Equal(t, []string{"10.1.0.3", "fd00:1::3"}, addresses)
	require.Empty(t, questions, "policies select pods only")
}

func TestPlugin_RejectsAPodWhosePoliciesAreNotInForce(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	m := newProtectedMachine(t, func(*machine, cni.Pod, []netip.Addr) error {
		if !ready.Load() {
			return errors.New("network policies are not known yet")
		}
		return nil
	}, "10.1.0.0/24")
	web := m.container("web").ofPod("web")
	_, err := web.add()
	require.Equal(t, types.ErrTryAgainLater, code(t, err))
	require.ErrorContains(t, err, "network policies of pod default/web are not in force")
	require.ErrorContains(t, err, "network policies are not known yet")
	require.Empty(t, m.taken(), "its address is free again")
	require.Zero(t, m.cables())
	ready.Store(true)
	_, err = web.add()
	require.NoError(t, err)
}

func TestPlugin_RejectsAPodIfTheDaemonDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := newProtectedMachine(t, func(*machine, cni.Pod, []netip.Addr) error { return nil }, "10.1.0.0/24")
	socket := filepath.Join(m.state, "daemon.sock")
	require.NoError(t, os.Remove(socket))
	refuse := func() {
		t.Helper()
		_, err := m.container("web").ofPod("web").add()
		require.Equal(t, types.ErrTryAgainLater, code(t, err))
		require.ErrorContains(t, err, "coxswain cni serve does not answer")
		require.Empty(t, m.taken())
		require.Zero(t, m.cables())
	}
	refuse()
	mute, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer func() { _ = mute.Close() }()
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	refuse()
}

func TestPlugin_DoesNotAskADaemonThatEnforcesNoPolicies(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "10.1.0.0/24")
	_, err := m.container("web").ofPod("web").add()
	require.NoError(t, err)
}

// openHost opens a state folder with a path that is longer than the limit for sockets.
func openHost(t *testing.T) (host *cni.Host, socket string) {
	t.Helper()
	state := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	host, err := cni.Open(state)
	require.NoError(t, err)
	t.Cleanup(host.Close)
	return host, filepath.Join(state, "daemon.sock")
}

// dialLong connects to a socket with a long path.
func dialLong(t *testing.T, socket string) net.Conn {
	t.Helper()
	dir, err := os.Open(filepath.Dir(socket))
	require.NoError(t, err)
	defer func() { _ = dir.Close() }()
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAnswer_RestrictsTheSocketToItsUser(t *testing.T) {
	t.Parallel()
	host, socket := openHost(t)
	for range 2 { // the second time, the socket of the first exists
		stop, err := host.Answer(t.Context(), func(context.Context, cni.Pod, []netip.Addr) error { return nil })
		require.NoError(t, err)
		for path, mode := range map[string]os.FileMode{socket: os.ModeSocket | 0o600,
			filepath.Dir(socket): os.ModeDir | 0o700} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, mode, info.Mode(), path)
		}
		conn := dialLong(t, socket)
		_, err = io.WriteString(conn, `{"pod":{"namespace":"default","name":"web"},"addresses":["10.1.0.2"]}`)
		require.NoError(t, err)
		out, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "{}\n", string(out))
		stop()
	}
}

// The mode of the socket refuses other users, and so does the mode of the folder.
func TestAnswer_RefusesOtherUsers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: becoming another user takes root, and is not tested here")
	}
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(path, 0o755))
	}
	folder := filepath.Join(dir, "state")
	host, err := cni.Open(folder)
	require.NoError(t, err)
	defer host.Close()
	stop, err := host.Answer(t.Context(), func(context.Context, cni.Pod, []netip.Addr) error { return nil })
	require.NoError(t, err)
	defer stop()
	connect := func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(folder, "daemon.sock")})
	}
	require.NoError(t, connect(), "the superuser may connect")
	for _, mode := range []os.FileMode{0o700, 0o755} {
		require.NoError(t, os.Chmod(folder, mode))
		require.ErrorIs(t, asNobody(connect), unix.EACCES, mode)
	}
}

// asNobody calls do as a user without rights.
func asNobody(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			result <- errno
			return
		}
		result <- do()
	}()
	return <-result
}

func TestAnswer_IsCanceledWithThePluginOrTheDaemon(t *testing.T) {
	t.Parallel()
	host, socket := openHost(t)
	began, ended := make(chan struct{}, 2), make(chan struct{}, 2)
	stop, err := host.Answer(t.Context(), func(ctx context.Context, _ cni.Pod, _ []netip.Addr) error {
		began <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return ctx.Err()
	})
	require.NoError(t, err)
	for _, end := range []func(net.Conn){func(conn net.Conn) { _ = conn.Close() }, func(net.Conn) { stop() }} {
		conn := dialLong(t, socket)
		_, err := io.WriteString(conn, "{}\n")
		require.NoError(t, err)
		<-began
		end(conn)
		<-ended
	}
}

func TestAnswer_ClosesTheConnectionOnInvalidInput(t *testing.T) {
	t.Parallel()
	host, socket := openHost(t)
	stop, err := host.Answer(t.Context(), func(context.Context, cni.Pod, []netip.Addr) error {
		t.Error("this was no question")
		return nil
	})
	require.NoError(t, err)
	defer stop()
	for _, text := range []string{"?", `{"addresses":["ten"]}`, `{"pod":{"name":"` + strings.Repeat("x", 20<<10) + `"}}`} {
		conn := dialLong(t, socket)
		_, _ = io.WriteString(conn, text) // the connection may be closed already
		out, _ := io.ReadAll(conn)
		require.Empty(t, out)
	}
}
