//go:build e2e && linux

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The machines of this cluster use routes rather than VXLAN, and its proxies and DNS servers are separate processes.
func TestKills_PartsOfTheirOwnSurvive(t *testing.T) {
	t.Parallel()
	need(t)
	c, err := startCluster([]string{"--cluster-dns", "10.96.0.10"}, flagsOfParts...)
	require.NoError(t, err)
	t.Cleanup(c.close)
	for _, node := range nodes {
		require.NoError(t, c.startProxy(node))
	}
	s := c.space(t)
	s.serveDNS()
	s.run("client", "client", on("a-0", patient(idle())))
	s.walkDeployment()
	s.surviveKills()
	s.leaveADeadMachine()
}

var flagsOfParts = []string{"--network-mode", "routes", "--proxy=false", "--dns=false"}

func (c *cluster) startProxy(node string) error {
	return c.start(c.machineOf(node), "proxy-"+node, "proxy", "--kubeconfig",
		filepath.Join(c.dir, "network.kubeconfig"), "--hostname-override", node, "--network-namespace", filepath.Join(c.folder(node), "netns"),
		"--healthz-bind-address", "", "--metrics-bind-address", "127.0.0.1:0")
}

// patient makes a pod retry DNS questions soon and often. A question that is lost with its server would otherwise block
// it for five seconds.
func patient(spec corev1.PodSpec) corev1.PodSpec {
	often, soon := "5", "1"
	spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{
		{Name: "attempts", Value: &often}, {Name: "timeout", Value: &soon}}}
	return spec
}

// dnsServers share an address on the first machine, so that one answers while the other is restarted.
const dnsServers = 2

func dnsName(i int) string { return fmt.Sprint("dns-", i) }

// serveDNS starts the DNS servers, as the Service kube-dns.
func (s *space) serveDNS() {
	s.Helper()
	for i := range dnsServers {
		s.startDNS(i)
	}
	ports := []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
		{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}}
	_, err := s.client.CoreV1().Services("kube-system").Create(s.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: ports}}, metav1.CreateOptions{})
	require.NoError(s, err)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-dns",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{s.firstAddress("a-0")}}},
	}
	for _, p := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	_, err = s.client.DiscoveryV1().EndpointSlices("kube-system").Create(s.Context(), slice, metav1.CreateOptions{})
	require.NoError(s, err)
}

// firstAddress returns the router's own address in a Node's subnet.
func (s *space) firstAddress(node string) (own string) {
	s.Helper()
	s.eventually(node+" has a subnet", func() error {
		n, err := s.client.CoreV1().Nodes().Get(s.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		subnet, err := netip.ParsePrefix(n.Spec.PodCIDR)
		own = subnet.Addr().String()
		return err
	})
	return own
}

// startDNS starts a server and waits until it is ready: its address exists once the agent has created the pods'
// network.
func (s *space) startDNS(i int) {
	s.Helper()
	metrics := fmt.Sprint("127.0.0.1:", 9153+i)
	start := func() error {
		return s.start(s.machines[0], dnsName(i), "dns", "--kubeconfig", filepath.Join(s.dir, "dns.kubeconfig"),
			"--listen", s.firstAddress("a-0")+":53", "--network-namespace", filepath.Join(s.folder("a-0"), "netns"),
			"--metrics-bind-address", metrics)
	}
	require.NoError(s, start())
	s.eventually(dnsName(i)+" is ready", func() error {
		select {
		case <-s.processes[dnsName(i)].exited:
			return errors.Join(errors.New(s.processes[dnsName(i)].out.tail()), start())
		default:
			_, err := s.machines[0].try(coxswain, "health", "https://"+metrics+"/readyz")
			return err
		}
	})
}

// surviveKills kills agents, proxies and DNS servers with kill -9 and restarts them, while a client in a pod has open
// streams and makes new connections. No stream may break, and one new connection in a thousand may fail.
func (s *space) surviveKills() {
	s.Helper()
	web, err := s.client.CoreV1().Services(s.name).Get(s.Context(), "web", metav1.GetOptions{})
	require.NoError(s, err)
	url := "http://" + web.Spec.ClusterIP
	until := make(chan struct{})
	var streams []*running
	for range 6 {
		streams = append(streams, s.untilClosed(until, "hold", url+":80/stream"))
	}
	// Several clients resolve names: one may wait for an answer that was lost with its server.
	connections := map[string]*running{
		"address": s.untilClosed(until, "get", "-until-eof", "-clients", "2", "-every", "2ms", "-timeout", "5s",
			url+"/hostname"),
		"name": s.untilClosed(until, "get", "-until-eof", "-clients", "4", "-every", "2ms", "-timeout", "15s",
			"http://web/hostname"),
	}
	rounds := 0
	s.eventually("there are enough connections to tell", func() error {
		s.killEach()
		if rounds++; rounds < killRounds {
			return fmt.Errorf("%d rounds", rounds)
		}
		for method, r := range connections {
			if total, _ := outcomes(r.out.String()); total < enoughConnections {
				return fmt.Errorf("%d by %s after %d rounds", total, method, rounds)
			}
		}
		return nil
	})
	s.service("after", "web", nil)
	s.answers("client", "http://after/hostname", s.podsOf("web", nodes...)...)
	close(until)
	for _, stream := range streams {
		require.NoError(s, <-stream.ended, "a stream has broken")
		require.Contains(s, stream.out.String(), "held")
	}
	for method, r := range connections {
		require.NoError(s, <-r.ended)
		total, failures := outcomes(r.out.String())
		s.Logf("%d new connections by %s, %d failed, in %d rounds", total, method, len(failures), rounds)
		require.LessOrEqual(s, len(failures), total/1000, "of %d connections by %s: %v", total, method, failures)
	}
}

// Each process is killed at least killRounds times, and until there are enoughConnections by address and by name.
const killRounds, enoughConnections = 4, 1000

// killEach kills one process after the other, the next one when the previous one has recovered.
func (s *space) killEach() {
	s.Helper()
	for _, node := range nodes {
		s.processes["proxy-"+node].kill()
		require.NoError(s, s.startProxy(node))
		if node != "a-0" { // its agent is also the API server, and has the client's terminal
			s.processes[node].kill()
			require.NoError(s, s.startAgent(node, flagsOfParts...))
		}
	}
	for i := range dnsServers {
		s.processes[dnsName(i)].kill()
		s.startDNS(i)
	}
	require.NoError(s, s.waitForNodes())
}

// running is a program in the client's pod. Its output can be read while it runs.
type running struct {
	out   output
	ended chan error
}

// untilClosed runs netexec in the client's pod until the channel is closed.
func (s *space) untilClosed(until <-chan struct{}, command ...string) *running {
	s.Helper()
	stdin, end, err := os.Pipe()
	require.NoError(s, err)
	r := &running{ended: make(chan error, 1)}
	go func() {
		<-until
		_ = end.Close()
	}()
	go func() {
		defer stdin.Close()
		args := append([]string{"--kubeconfig", s.kubeconfig, "-n", s.name, "exec", "-i", "client", "--", inPod},
			command...)
		r.ended <- s.machines[0].run(stdin, &r.out, kubectl, args...)
	}()
	return r
}

// leaveADeadMachine disconnects a machine and kills all its processes. Its endpoints must get no more traffic once its
// Node is unreachable.
func (s *space) leaveADeadMachine() {
	s.Helper()
	left := s.podsOf("web", "a-0", "b-0")
	require.NoError(s, s.machines[2].unplug())
	s.processes["c-0"].kill()
	s.processes["proxy-c-0"].kill()
	begun := time.Now()
	s.answers("client", "http://web/hostname", left...)
	s.Logf("traffic left the dead machine after %v", time.Since(begun).Round(time.Second))
}

// outcomes parses the output of netexec get: the number of lines, and the failures.
func outcomes(out string) (total int, failures []string) {
	for line := range strings.Lines(out) {
		total++
		if strings.HasPrefix(line, "error:") {
			failures = append(failures, line)
		}
	}
	return total, failures
}
