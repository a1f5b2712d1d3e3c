package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/testenv"
)

// cluster starts an API server with the proxy's Node.
func cluster(t *testing.T) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: here},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::10"}}
	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	return config, client
}

// start runs a proxy until the test ends or the caller calls stop.
func (w *world) start(config *rest.Config, o Options) (stop func()) {
	w.Helper()
	ready, ended := make(chan struct{}), make(chan error, 1)
	o.Namespace, o.Nodes, o.Ready = w.node, []string{here}, func() { close(ready) }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- Run(ctx, config, o) }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(w, err)
		require.FailNow(w, "the proxy ended")
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(w, <-ended)
		}
	}
	w.Cleanup(stop)
	return stop
}

func create(t *testing.T, client kubernetes.Interface, s *corev1.Service, pods ...*pod) *corev1.Service {
	t.Helper()
	s.Namespace = metav1.NamespaceDefault
	s.Spec.ClusterIPs, s.Spec.ClusterIP = nil, ""
	made, err := client.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{})
	require.NoError(t, err)
	if len(pods) > 0 {
		slice := newSlices(made)[0]
		for _, p := range pods {
			e := p.endpoint()
			e.Addresses = e.Addresses[:1]
			slice.Endpoints = append(slice.Endpoints, e)
		}
		_, err = client.DiscoveryV1().EndpointSlices(s.Namespace).Create(t.Context(), slice, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	return made
}

func TestRun_FollowsTheAPI(t *testing.T) {
	w := newWorld(t)
	config, client := cluster(t)
	a, b := w.pod().serve(8080), w.pod()
	before := create(t, client, newService("before", 1), a)
	registry := prometheus.NewRegistry()
	w.start(config, Options{Metrics: registry})
	w.answers(b.namespace, "tcp", before.Spec.ClusterIP+":80", a)

	after := create(t, client, newService("after", 2, func(s *corev1.Service) {
		exposed(s)
		localOutside(s)
		s.Status = corev1.ServiceStatus{}
	}), a)
	require.Eventually(t, func() bool {
		_, _, err := ask(b.namespace, "tcp", after.Spec.ClusterIP+":80")
		return err == nil
	}, limit, tick)
	w.answers(w.outside.namespace, "tcp", "192.0.2.10:30080", a)
	err := client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "after-0", metav1.DeleteOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, _, err := ask(b.namespace, "tcp", after.Spec.ClusterIP+":80")
		return err != nil
	}, limit, tick)
	w.refuses(b.namespace, "tcp", after.Spec.ClusterIP+":80")

	found, err := registry.Gather()
	require.NoError(t, err)
	var names []string
	for _, f := range found {
		names = append(names, f.GetName())
	}
	require.Subset(t, names, []string{"kubeproxy_sync_proxy_rules_duration_seconds",
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds", "kubeproxy_sync_proxy_rules_endpoint_changes_total"})
}

func TestRun_ServesHealthCheckNodePorts(t *testing.T) {
	w := newWorld(t)
	config, client := cluster(t)
	a := w.pod().serve(8080)
	health := NewHealth(clock.RealClock{})
	w.start(config, Options{Health: health})
	s := create(t, client, newService("web", 1, exposed, localOutside), a)
	get := func() (int, map[string]any) {
		var answer map[string]any
		c, err := dial(w.outside.namespace, "tcp", netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"),
			uint16(s.Spec.HealthCheckNodePort)).String())
		if err != nil {
			return 0, nil
		}
		defer c.Close()
		request, _ := http.NewRequest(http.MethodGet, "http://node/", nil)
		_ = request.Write(c) // the server may close meanwhile
		response, err := http.ReadResponse(bufio.NewReader(c), request)
		if err != nil {
			return 0, nil // the server has closed
		}
		defer response.Body.Close()
		require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
		return response.StatusCode, answer
	}
	require.NotZero(t, s.Spec.HealthCheckNodePort)
	require.Eventually(t, func() bool { code, _ := get(); return code == http.StatusOK }, limit, tick)
	_, answer := get()
	require.Equal(t, map[string]any{"service": map[string]any{"namespace": "default", "name": "web"},
		"localEndpoints": 1.0, "serviceProxyHealthy": true}, answer)
	err := client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "web-0", metav1.DeleteOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { code, _ := get(); return code == http.StatusServiceUnavailable }, limit, tick)
	require.NoError(t, client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { code, _ := get(); return code == 0 }, limit, tick)
}

func TestCleanup_RemovesTheTables(t *testing.T) {
	w := newWorld(t)
	config, _ := cluster(t)
	w.start(config, Options{})()
	tables := func() int {
		n := 0
		for f := range families {
			table, err := openTable(f, w.node)
			require.NoError(t, err)
			defer table.close()
			tx, err := table.kernel.Begin()
			require.NoError(t, err)
			all, err := tx.ListTablesOfFamily(f.tableFamily())
			require.NoError(t, err)
			n += len(all)
		}
		return n
	}
	require.Equal(t, 2, tables(), "the rules stay when the proxy ends")
	require.NoError(t, Cleanup(w.node))
	require.Zero(t, tables())
	require.NoError(t, Cleanup(w.node), "the tables do not exist")
}
