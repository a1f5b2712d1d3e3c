//go:build e2e

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
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

// shop is a Deployment with a load balancer and an Ingress without a class.
const shop = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: shop
        image: none
        command: [perl, -MIO::Socket::INET, -e]
        args:
        - |
          my $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8080, ReuseAddr => 1) or die;
          while (my $client = $server->accept) {
            while (my $line = <$client>) { last if $line =~ /^\r?\n$/ }
            print $client "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nsold\n";
            close $client;
          }
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {type: LoadBalancer, selector: {app: shop}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec:
  rules:
  - host: shop.example.com
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}
`

// balanced waits until the Service and the Ingress shop have addresses, and returns them.
func (c *cluster) balanced() (service, ingress string) {
	c.t.Helper()
	out, err := c.kubectlWith(shop, "apply", "-f", "-")
	require.NoError(c.t, err, out)
	const address = "jsonpath={.status.loadBalancer.ingress[0].ip}"
	eventually(c.t, time.Minute, "addresses", func() bool {
		service = c.kubectl("get", "service", "shop", "-o", address)
		ingress = c.kubectl("get", "ingress", "shop", "-o", address)
		return service != "" && ingress != ""
	})
	return service, ingress
}

func TestUp_GivesLoadBalancersAndIngressesAddresses(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t)).withAccount()
	service, ingress := c.balanced()
	for _, address := range []string{service, ingress} {
		require.True(t, netip.MustParseAddr(address).IsLoopback(), "nothing answers there: %s", address)
		_, err := net.DialTimeout("tcp", net.JoinHostPort(address, "80"), 10*time.Second)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	require.Equal(t, "coxswain", c.kubectl("get", "ingress", "shop", "-o", "jsonpath={.spec.ingressClassName}"))
	c.server.interrupt()

	c = up(t, dataDir(t), "--service-lb-pool", "", "--ingress=false").withAccount()
	out, err := c.kubectlWith(shop, "apply", "-f", "-")
	require.NoError(t, err, out)
	c.kubectl("rollout", "status", "deployment/shop", "--timeout=50s")
	require.Empty(t, c.kubectl("get", "ingressclasses", "-o", "name"))
	require.Empty(t, c.kubectl("get", "service", "shop", "-o", "jsonpath={.status.loadBalancer.ingress}"))
	c.server.interrupt()
}

func TestUp_ServesLoadBalancersAndIngressesOfPrograms(t *testing.T) {
	needNamespaces(t)
	port := freePort(t)
	c := up(t, dataDir(t), "--runtime", "process", "--ingress-http-address", "127.0.0.1:"+port,
		"--ingress-https-address", "").withAccount()
	_, err := net.Dial("tcp", "127.0.0.1:"+port)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "there is no Ingress yet")
	service, ingress := c.balanced()
	require.Equal(t, "127.0.0.1", ingress)
	answers := func(url string) func() bool {
		return func() bool {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			require.NoError(t, err)
			request.Host = "shop.example.com"
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return false
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			return err == nil && string(text) == "sold\n"
		}
	}
	eventually(t, time.Minute, "the load balancer answers the machine", answers("http://"+service))
	eventually(t, time.Minute, "the Ingress is served", answers("http://127.0.0.1:"+port))
	nodePort := c.kubectl("get", "service", "shop", "-o", "jsonpath={.spec.ports[0].nodePort}")
	node := c.kubectl("get", "node", "node-0", "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`)
	node, _, _ = strings.Cut(node, " ")
	eventually(t, time.Minute, "the node port answers the machine", answers("http://"+net.JoinHostPort(node, nodePort)))
	c.kubectl("run", "client", "--image=none", "--restart=Never", "--command", "--", "perl", "-MIO::Socket::INET", "-e",
		`for (@ARGV) { my $s = IO::Socket::INET->new(PeerAddr => $_, Timeout => 20) or die $_; `+
			`print $s "GET / HTTP/1.0\r\n\r\n"; print <$s> }`, service+":80", node+":"+nodePort)
	c.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/client", "--timeout=50s")
	require.Equal(t, 2, strings.Count(c.kubectl("logs", "client"), "sold"), "both answer pods")
	c.kubectl("delete", "deployment/shop", "service/shop", "ingress/shop", "pod/client", "--wait=true")
	c.server.interrupt()
}

// TestUp_EachSimulatedNodeHasAnAddressOfItsOwn collects the metrics of a kubelet like Prometheus' role node does: at
// the Node's first InternalIP and its port, without further parameters.
func TestUp_EachSimulatedNodeHasAnAddressOfItsOwn(t *testing.T) {
	t.Parallel()
	const count = 150 // more than have an identity each
	c := up(t, dataDir(t), "--nodes", strconv.Itoa(count))
	c.nodesReady(count)
	var nodes *corev1.NodeList
	eventually(t, time.Minute, "every Node has an address of its own", func() bool {
		var err error
		nodes, err = c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool {
			return n.Status.Addresses[0].Address == "127.0.0.1"
		})
	})
	config := rest.CopyConfig(c.config)
	config.Insecure, config.CAData = true, nil
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	defer client.CloseIdleConnections()
	authority, err := os.ReadFile(filepath.Join(filepath.Dir(c.kubeconfig), "pki", "kubelet-serving-ca.crt"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority))
	seen := map[string]bool{}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		address := node.Status.Addresses[0].Address
		require.True(t, netip.MustParseAddr(address).IsLoopback(), address)
		require.False(t, seen[address], "%s has the address of another Node", node.Name)
		seen[address] = true
		if i%50 != 0 {
			continue
		}
		target := net.JoinHostPort(address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
		for path, want := range map[string]string{"/metrics": `kubelet_node_name{node="` + node.Name + `"} 1`,
			"/stats/summary": `"nodeName":"` + node.Name + `"`, "/metrics/resource": "node_cpu_usage_seconds_total",
			"/metrics/cadvisor": "machine_cpu_cores", "/configz": `"kubeletconfig"`, "/healthz": "ok"} {
			response, err := client.Get("https://" + target + path)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Contains(t, string(text), want, "%s of %s", path, node.Name)
		}
		conn, err := tls.Dial("tcp", target, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
		require.NoError(t, err, "the certificate is for the address")
		require.NoError(t, conn.Close())
		require.Contains(t, c.kubectl("get", "--raw", "/api/v1/nodes/"+node.Name+"/proxy/stats/summary"),
			`"nodeName":"`+node.Name+`"`)
	}
	c.server.interrupt()
}
