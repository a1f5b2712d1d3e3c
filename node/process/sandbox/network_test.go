//go:build linux

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/network/router"
)

// network is a router on this machine with a subnet of its own.
type network struct {
	*router.Router
	device string
	subnet netip.Prefix
}

// openNetwork opens a router with a device that is removed after the test.
func openNetwork(t *testing.T) *network {
	t.Helper()
	if err := Supported(); err != nil {
		skipNetwork(t, err)
	}
	r, err := router.Open(nil, router.Options{})
	needsNetwork(t, err)
	n := &network{Router: r, device: fmt.Sprintf("coxt%x", rand.Uint32())}
	t.Cleanup(func() {
		r.Close()
		require.Eventually(t, func() bool {
			_, err := net.InterfaceByName(n.device)
			return err != nil
		}, patience, step, "nothing is left of a network that nobody has")
	})
	for {
		first := netip.AddrFrom4([4]byte{10, byte(200 + rand.IntN(50)), byte(rand.IntN(256)), 0})
		n.subnet = netip.PrefixFrom(first, 24)
		err := r.AddNode(n.device, n.subnet)
		if err != nil && strings.Contains(err.Error(), "has the address") {
			continue
		}
		needsNetwork(t, err)
		return n
	}
}

func skipNetwork(t *testing.T, err error) {
	t.Helper()
	t.Skipf("SKIPPED: the pods' network is not tested: it takes root with CAP_NET_ADMIN and network namespaces: %v", err)
}

// needsNetwork skips the test if the kernel does not allow or support such networks, and fails it for any other error.
func needsNetwork(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		skipNetwork(t, err)
	}
	require.NoError(t, err)
}

func (n *network) address(i int) string {
	a := n.subnet.Addr().As4()
	a[3] += byte(i)
	return netip.AddrFrom4(a).String()
}

// server returns a container that answers every connection with a word.
func server(p *Pod, word string) *Container {
	c := shell(p, fmt.Sprintf(
		`exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 5, LocalAddr => "0.0.0.0", LocalPort => 80, ReuseAddr => 1) or die $!; while ($c = $s->accept) { print $c "%s from ", $c->peerhost, "\n"; close $c }'`, word))
	c.Capabilities = append(c.Capabilities, CapabilityNumbers["NET_BIND_SERVICE"])
	return c
}

func askPort(ctx context.Context, address string) string {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	text, _ := io.ReadAll(conn)
	return string(text)
}

func TestNetwork_ConnectsPodsWithEachOtherAndTheNode(t *testing.T) {
	t.Parallel()
	n := openNetwork(t)
	pod := func(i int) *Pod { return startPod(t, func(s *Config) { s.IP = n.address(i) }) }
	web, client := pod(5), pod(6)
	require.NoError(t, web.Connect(t.Context(), n))
	require.NoError(t, client.Connect(t.Context(), n))
	require.NoError(t, client.Connect(t.Context(), n), "it is connected already")
	require.NoError(t, web.Run(t.Context(), server(web, "hello")))
	require.Eventually(t, func() bool {
		return askPort(t.Context(), n.address(5)+":80") == "hello from "+n.address(1)+"\n"
	}, patience, step, "the node reaches the pod")

	listener, err := net.Listen("tcp", n.address(1)+":0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "the node\n")
			_ = conn.Close()
		}
	}()
	read := `exec perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 20)->getline' `
	_, log := finish(t, client, shell(client, read+n.address(5)+":80"))
	require.Equal(t, "hello from "+n.address(6)+"\n", log, "a pod reaches another")
	again := shell(client, read+listener.Addr().String())
	again.Run = 1
	_, log = finish(t, client, again)
	require.Equal(t, "the node\n", log, "a pod reaches its node")
	own := shell(client, read+"127.0.0.1:80")
	own.Run = 2
	exit, _ := finish(t, client, own)
	require.NotZero(t, exit.Code, "loopback is the pod's own")
}

func TestNetwork_IsFoundThroughItsPods(t *testing.T) {
	t.Parallel()
	n := openNetwork(t)
	p := startPod(t, func(s *Config) { s.IP = n.address(5) })
	require.NoError(t, p.Connect(t.Context(), n))
	require.NoError(t, p.Run(t.Context(), server(p, "still")))
	n.Close() // as when the agent is killed

	found := RouterOf([]*Pod{Adopt(Config{Dir: t.TempDir()}), Adopt(Config{Dir: p.Dir})})
	require.NotNil(t, found)
	again, err := router.Open(found, router.Options{})
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.AddNode(n.device, n.subnet))
	require.Eventually(t, func() bool {
		return strings.HasPrefix(askPort(t.Context(), n.address(5)+":80"), "still")
	}, patience, step)
	other := startPod(t, func(s *Config) { s.IP = n.address(6) })
	require.NoError(t, other.Connect(t.Context(), again))
	_, log := finish(t, other,
		shell(other, `exec perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 20)->getline' `+n.address(5)+":80"))
	require.Equal(t, "still from "+n.address(6)+"\n", log)
	require.ErrorContains(t, again.AddNode(n.device+"x", n.subnet), "has the address", "nobody else can have the subnet")
}
