//go:build e2e

package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onHost is a Deployment of pods with hostNetwork, and a Service that selects them.
const onHost = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: exporter}
spec:
  replicas: 3
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      containers:
      - name: exporter
        image: none
        command: [perl, -MIO::Socket::INET, -e]
        args:
        - |
          my $server = IO::Socket::INET->new(Listen => 5, LocalPort => 39117, ReuseAddr => 1) or sleep;
          while (my $client = $server->accept) { print $client "measured\n"; close $client }
---
apiVersion: v1
kind: Service
metadata: {name: exporter}
spec: {selector: {app: exporter}, ports: [{port: 9100, targetPort: 39117}]}
`

// endpointsOf waits until a Service has endpoints, and returns their addresses.
func (c *cluster) endpointsOf(service string, count int) (addresses []string) {
	c.t.Helper()
	eventually(c.t, time.Minute, "endpoints of "+service, func() bool {
		list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.t.Context(),
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
		addresses = nil
		if err != nil {
			return false
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				addresses = append(addresses, e.Addresses...)
			}
		}
		return len(addresses) == count
	})
	return addresses
}

func TestHostNetwork_PodsAreEndpointsOfServices(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t)).withAccount()
	out, err := c.kubectlWith(onHost, "apply", "-f", "-")
	require.NoError(t, err, out)
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var own []string
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			own = append(own, a.Address)
		}
	}
	for _, address := range c.endpointsOf("exporter", 3) {
		require.False(t, netip.MustParseAddr(address).IsLoopback(), address)
		require.Contains(t, own, address, "it is a Node's address")
	}
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=exporter"})
	require.NoError(t, err)
	for i := range pods.Items {
		require.Equal(t, pods.Items[i].Status.HostIP, pods.Items[i].Status.PodIP)
	}
	require.Equal(t, "Service/exporter is ready.\n", c.run(kubectlLite, "why", "service/exporter"))
	c.server.interrupt()
}

// TestHostNetwork_ServerIsReachedByItsService reaches a program in the machine's own network from a pod, by the Service
// that selects it.
func TestHostNetwork_ServerIsReachedByItsService(t *testing.T) {
	needNamespaces(t)
	c := up(t, dataDir(t), "--runtime", "process").withAccount()
	out, err := c.kubectlWith(strings.Replace(onHost, "replicas: 3", "replicas: 1", 1), "apply", "-f", "-")
	require.NoError(t, err, out)
	c.kubectl("run", "client", "--image=none", "--restart=Never", "--command", "--", "perl", "-MIO::Socket::INET", "-e",
		`for (1..100) { my $s = IO::Socket::INET->new(PeerAddr => "exporter:9100", Timeout => 5); `+
			`if ($s) { print $s->getline; exit 0 } sleep 1 } exit 1`)
	c.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/client", "--timeout=100s")
	require.Equal(t, "measured\n", c.kubectl("logs", "client"))
	require.False(t, netip.MustParseAddr(c.endpointsOf("exporter", 1)[0]).IsLoopback())
	c.kubectl("delete", "deployment/exporter", "service/exporter", "pod/client", "--wait=true")
	c.server.interrupt()
}
