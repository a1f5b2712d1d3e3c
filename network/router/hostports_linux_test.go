package router_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/router"
)

func hostPort(address string, port, podPort uint16) router.HostPort {
	p := router.HostPort{Protocol: unix.IPPROTO_TCP, Port: port, PodPort: podPort}
	if address != "" {
		p.Address = netip.MustParseAddr(address)
	}
	return p
}

func (m machine) serveHostPorts(r *router.Router, pod string, ports ...router.HostPort) {
	m.t.Helper()
	m.do(func() error { return r.ServeHostPorts(netip.MustParseAddr(pod), ports) })
}

// reopen opens the router of a namespace, like another process.
func (m machine) reopen(r *router.Router) (again *router.Router) {
	m.t.Helper()
	namespace, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", r.Namespace().Fd()))
	require.NoError(m.t, err)
	m.do(func() (err error) {
		again, err = router.Open(namespace, router.Options{})
		return err
	})
	m.t.Cleanup(again.Close)
	return again
}

func TestRouter_ForwardsHostPortsToPods(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	r := m.router("cox0", "10.1.0.0/24", "fd01::/64")
	a, b := m.pod(r, "10.1.0.5", "fd01::5"), m.pod(r, "10.1.0.6", "fd01::6")
	for word, pod := range map[string]machine{"a": a, "b": b} {
		pod.serveOn(80, func(from netip.Addr) string { return word + " to " + from.String() })
	}
	m.serveHostPorts(r, "10.1.0.5") // no effect without host ports
	ofA := []router.HostPort{hostPort("127.0.0.1", 54323, 80), hostPort("::", 54324, 80)}
	m.serveHostPorts(r, "10.1.0.5", ofA...)
	m.serveHostPorts(r, "10.1.0.6", hostPort("192.0.2.1", 54323, 80), hostPort("", 8000, 80))
	m.serveHostPorts(r, "fd01::5", hostPort("::", 8000, 80), hostPort("127.0.0.1", 54324, 80))
	for range 2 { // the second time with a new process
		require.Equal(t, "a to 10.1.0.1", m.askPort("127.0.0.1", 54323))
		require.Equal(t, "b to 192.0.2.1", m.askPort("192.0.2.1", 54323))
		require.Equal(t, "b to 192.0.2.2", other.askPort("192.0.2.1", 54323), "the client's address is kept")
		require.Equal(t, "b to 192.0.2.2", other.askPort("192.0.2.1", 8000))
		require.Equal(t, "b to 10.1.0.1", m.askPort("127.0.0.1", 8000))
		require.Equal(t, "b to 10.1.0.5", a.askPort("192.0.2.1", 8000), "a pod of the machine keeps its address")
		require.Equal(t, "a to fd01::6", b.askPort("fd01::1", 8000), "a pod of the machine keeps its address")
		require.Equal(t, "b to 10.1.0.1", b.askPort("192.0.2.1", 8000), "the pod itself is masqueraded")
		require.Equal(t, "a to fd01::1", m.askPort("fd01::1", 8000))
		require.Equal(t, "a to fd01::1", a.askPort("fd01::1", 8000), "the pod itself is masqueraded")
		require.Contains(t, m.askPort("127.0.0.1", 54324), "refused", "another family is not served")
		r = m.reopen(r)
		m.addNode(r, "cox0", "10.1.0.0/24", "fd01::/64")
		m.serveHostPorts(r, "10.1.0.5", ofA...)
	}
}

func TestRouter_RemovesHostPorts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.router("cox0", "10.1.0.0/24")
	for _, pod := range []string{"10.1.0.5", "10.1.0.6", "10.1.0.7"} {
		m.pod(r, pod).serveOn(80, func(netip.Addr) string { return pod })
	}
	m.serveHostPorts(r, "10.1.0.5", hostPort("", 8000, 80), hostPort("", 8001, 80))
	m.serveHostPorts(r, "10.1.0.6", hostPort("", 8002, 80))
	m.serveHostPorts(r, "10.1.0.5", hostPort("", 8000, 80))
	require.Equal(t, "10.1.0.5", m.askPort("127.0.0.1", 8000))
	require.Contains(t, m.askPort("127.0.0.1", 8001), "refused")
	m.serveHostPorts(r, "10.1.0.6")
	require.Contains(t, m.askPort("127.0.0.1", 8002), "refused")
	m.serveHostPorts(r, "10.1.0.7", hostPort("", 8000, 80))
	require.Equal(t, "10.1.0.7", m.askPort("127.0.0.1", 8000), "a port of another pod moves")
	require.NoError(t, r.DisconnectPod(netip.MustParseAddr("10.1.0.7")))
	m.serveHostPorts(r, "10.1.0.6", hostPort("", 8002, 80))
	require.Contains(t, m.askPort("127.0.0.1", 8000), "refused", "ports of a deleted pod are removed")
	require.Equal(t, "10.1.0.6", m.askPort("127.0.0.1", 8002))
}
