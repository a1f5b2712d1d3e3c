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
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// openNetwork makes a network whose subnet nobody else of this machine has, and whose device goes with the test.
func openNetwork(t *testing.T) *Network {
	t.Helper()
	return openNetworks(t, 1)[0]
}

// openNetworks makes those of several Nodes of an agent.
func openNetworks(t *testing.T, count int) []*Network {
	t.Helper()
	if err := Supported(); err != nil {
		skipNetwork(t, err)
	}
	s, err := OpenNetworks(nil)
	needsNetwork(t, err)
	var all []*Network
	t.Cleanup(func() {
		s.Close()
		for _, n := range all {
			require.Eventually(t, func() bool {
				_, err := net.InterfaceByName(n.device)
				return err != nil
			}, patience, step, "nothing is left of a network that nobody has")
		}
	})
	for len(all) < count {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(200 + rand.IntN(50)), byte(rand.IntN(256)), 0}), 24)
		n, err := s.Open(fmt.Sprintf("coxt%x", rand.Uint32()), subnet)
		if err != nil && strings.Contains(err.Error(), "has the address") {
			continue
		}
		needsNetwork(t, err)
		all = append(all, n)
	}
	return all
}

func skipNetwork(t *testing.T, err error) {
	t.Helper()
	t.Skipf("SKIPPED: the pods' network is not tested: it takes root with CAP_NET_ADMIN, network namespaces and "+
		"bridges: %v",
		err)
}

// needsNetwork skips the test where the kernel allows or has no such networks, and fails it for any other error.
func needsNetwork(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		skipNetwork(t, err)
	}
	require.NoError(t, err)
}

func (n *Network) address(i int) string {
	a := n.subnet.Addr().As4()
	a[3] += byte(i)
	return netip.AddrFrom4(a).String()
}

// server answers every connection with a word.
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
	require.NoError(t, n.Connect(web))
	require.NoError(t, n.Connect(client))
	require.NoError(t, n.Connect(client), "it is connected already")
	require.NoError(t, web.Run(server(web, "hello")))
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

func TestNetwork_IsFoundAgainByItsPodsAndGoesWithThem(t *testing.T) {
	t.Parallel()
	n := openNetwork(t)
	p := startPod(t, func(s *Config) { s.IP = n.address(5) })
	require.NoError(t, n.Connect(p))
	require.NoError(t, p.Run(server(p, "still")))
	n.of.Close() // as when the agent is killed

	found, err := OpenNetworks([]*Pod{Adopt(Config{Dir: t.TempDir()}), Adopt(Config{Dir: p.Dir})})
	require.NoError(t, err)
	defer found.Close()
	again, err := found.Open(n.device, n.subnet)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return strings.HasPrefix(askPort(t.Context(), n.address(5)+":80"), "still")
	}, patience, step)
	other := startPod(t, func(s *Config) { s.IP = n.address(6) })
	require.NoError(t, again.Connect(other))
	_, log := finish(t, other,
		shell(other, `exec perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 20)->getline' `+n.address(5)+":80"))
	require.Equal(t, "still from "+n.address(6)+"\n", log)

	_, err = found.Open(n.device+"x", n.subnet)
	require.ErrorContains(t, err, "has the address", "nobody else can have the subnet")
}

func TestNetwork_TakesTheDeviceOfAnAgentThatEndedHalfway(t *testing.T) {
	t.Parallel()
	n := openNetwork(t)
	held, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", descriptor(n.of.namespace)))
	require.NoError(t, err)
	defer held.Close()
	others, err := OpenNetworks(nil)
	require.NoError(t, err)
	defer others.Close()
	_, err = others.Open(n.device, n.subnet)
	require.NoError(t, err)
}

func TestNetwork_ConnectsPodsOfSeveralNodes(t *testing.T) {
	t.Parallel()
	nodes := openNetworks(t, 3)
	read := `exec perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 20)->getline' `
	var pods []*Pod
	for i, n := range nodes {
		p := startPod(t, func(s *Config) { s.IP = n.address(5) })
		require.NoError(t, n.Connect(p))
		require.NoError(t, p.Run(server(p, fmt.Sprint("node ", i))))
		require.Eventually(t, func() bool {
			return askPort(t.Context(), n.address(5)+":80") == fmt.Sprintf("node %d from %s\n", i, n.address(1))
		}, patience, step, "the machine reaches it")
		pods = append(pods, p)
	}
	for i, p := range pods {
		for j, n := range nodes {
			c := shell(p, read+n.address(5)+":80")
			c.Name, c.Cgroup = fmt.Sprint("ask-", j), fmt.Sprint(cgroupOf(p), "/ask-", j)
			_, log := finish(t, p, c)
			require.Equal(t, fmt.Sprintf("node %d from %s\n", j, nodes[i].address(5)), log, "from node %d to node %d",
				i, j)
		}
	}
}
