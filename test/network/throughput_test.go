//go:build e2e && linux

package network

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// BenchmarkThroughput measures the throughput of iperf3, over one connection for a second each time, on each path of
// packets: to a pod of the same machine and of another, directly and by a Service, compared with a plain pair of veth
// devices in the same run.
func BenchmarkThroughput(b *testing.B) {
	need(b)
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.Skipf("SKIPPED: no iperf3: %v", err)
	}
	b.Run("veth", func(b *testing.B) { send(b, bareVeth(b)) })
	for _, mode := range []string{"vxlan", "routes"} {
		b.Run(mode, func(b *testing.B) {
			c, err := startCluster(nil, "--network-mode", mode)
			require.NoError(b, err)
			b.Cleanup(c.close)
			s := c.space(b)
			s.iperf3("client", "a-0")
			for name, node := range map[string]string{"near": "a-0", "far": "b-0"} {
				pod := s.iperf3(name, node)
				service := s.service(name, name, func(spec *corev1.ServiceSpec) {
					spec.Ports = []corev1.ServicePort{{Port: 5201, TargetPort: intstr.FromInt(5201)}}
				})
				b.Run(name+"-pod", func(b *testing.B) { send(b, s.sender(pod.Status.PodIP)) })
				b.Run(name+"-service", func(b *testing.B) { send(b, s.sender(service.Spec.ClusterIP)) })
			}
		})
	}
}

// iperf3 runs a server.
func (s *space) iperf3(name, node string) *corev1.Pod {
	s.Helper()
	spec := on(node, program("iperf3"))
	spec.Containers[0].Command, spec.Containers[0].ReadinessProbe = []string{"iperf3", "-s"}, nil
	return s.run(name, name, spec)
}

// sender sends from the client's pod.
func (s *space) sender(to string) func() (string, error) {
	return func() (string, error) {
		return s.kubectl("-n", s.name, "exec", "client", "--", "iperf3", "--json", "-t", "1", "-c", to)
	}
}

// send reports the received throughput, averaged over all runs. The server may not have started yet.
func send(b *testing.B, once func() (string, error)) {
	b.Helper()
	total := 0.0
	for b.Loop() {
		require.NoError(b, eventually("iperf3 measures", func(context.Context) (bool, error) {
			out, err := once()
			var result struct {
				End struct {
					Received struct {
						BitsPerSecond float64 `json:"bits_per_second"`
					} `json:"sum_received"`
				} `json:"end"`
			}
			if err = errors.Join(err, json.Unmarshal([]byte(out), &result)); err == nil {
				total += result.End.Received.BitsPerSecond
			}
			return err == nil, err
		}))
	}
	b.ReportMetric(total/float64(b.N)/1e9, "Gbit/s")
	b.ReportMetric(0, "ns/op")
}

// bareVeth sends between two namespaces over a plain pair of devices.
func bareVeth(b *testing.B) func() (string, error) {
	b.Helper()
	var ends []*machine
	for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
		f, err := netns.New()
		require.NoError(b, err)
		b.Cleanup(func() { _ = f.Close() })
		ends = append(ends, &machine{f, address})
	}
	require.NoError(b, ends[0].do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "uplink",
			PeerNamespace: netlink.NsFd(ends[1].namespace.Fd())})
	}))
	for _, e := range ends {
		require.NoError(b, e.do(func() error { return giveAddress("uplink", e.address+"/24") }))
	}
	server, err := ends[0].start("iperf3", "-s")
	require.NoError(b, err)
	b.Cleanup(server.kill)
	return func() (string, error) { return ends[1].try("iperf3", "--json", "-t", "1", "-c", ends[0].address) }
}
