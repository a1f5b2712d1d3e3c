package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// up is a running control plane of two Nodes, as a user starts it.
type up struct {
	*testing.T
	config *rest.Config
	client kubernetes.Interface
}

// startUp runs coxswain up until the test ends.
func startUp(t *testing.T) *up {
	dir := filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := newCommand()
	cmd.SetArgs([]string{"up", "--data-dir", dir, "--secure-port", "0", "--nodes", "2", "--show-components"})
	cmd.SetOut(io.Discard)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	require.Eventually(t, func() bool { _, err := os.Stat(kubeconfig); return err == nil }, patience, tick)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	return &up{t, config, kubernetes.NewForConfigOrDie(config)}
}

const patience, tick = time.Minute, 50 * time.Millisecond

// get returns the answer to a GET, or the error.
func (u *up) get(path string) string {
	text, err := u.client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(u.Context())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// This test is not parallel, since a command sets the process's logger.
func TestUp_ServesMetricsOfAllComponents(t *testing.T) {
	u := startUp(t)
	get := u.get
	has := func(path string, families ...string) {
		t.Helper()
		for _, family := range families {
			line := regexp.MustCompile(`(?m)^` + family)
			require.Eventually(t, func() bool {
				return line.MatchString(get(path))
			}, patience, tick, "%s at %s", family, path)
		}
	}
	has("/metrics", `apiserver_request_sli_duration_seconds_bucket{`, `scheduler_pending_pods{queue="active"} `,
		`scheduler_cache_size{type="nodes"} 2`, `workqueue_depth{name=`,
		`workqueue_queue_duration_seconds_bucket{`,
		`rest_client_requests_total\{code="20[01]",host="127.0.0.1:\d+",method="POST"\}`,
		`rest_client_request_duration_seconds_bucket\{host="127.0.0.1:\d+",verb="GET",le=`,
		`go_goroutines `, `process_resident_memory_bytes `, `kubernetes_build_info\{`,
		`etcd_disk_wal_fsync_duration_seconds_count `, `etcd_mvcc_db_total_size_in_bytes`,
		`running_managed_controllers\{manager="kube-controller-manager",name="job"\} 1`,
		`root_ca_cert_publisher_sync_total\{code="200"\}`, `node_collector_zone_size\{zone=""\} 2`)
	has("/flagz", `secure-port=0\n`)
	has("/api/v1/nodes/node-1/proxy/metrics", `kubelet_node_name\{node="node-1"\} 1`, `kubelet_running_pods 0`,
		`rest_client_requests_total{`, `go_goroutines `)
	has("/api/v1/namespaces/kube-system/pods/kube-controller-manager-node-0/log", `.*controllers started`)
	has("/api/v1/namespaces/kube-system/pods/kube-scheduler-node-0/log", `.*starting kube-scheduler`)
	has("/api/v1/namespaces/kube-system/pods/kube-apiserver-node-0/log", `.*starting kube-apiserver`)
	pods, err := u.client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{
		LabelSelector: "tier=control-plane,component in (kube-apiserver,kube-controller-manager,kube-scheduler)"})
	require.NoError(t, err)
	require.Len(t, pods.Items, 3)
	has("/api/v1/nodes/node-1/proxy/configz", `\{"kubeletconfig":\{.*"kind":"KubeletConfiguration"`)
	_, err = u.client.Discovery().RESTClient().Get().AbsPath("/configz").DoRaw(t.Context())
	require.True(t, apierrors.IsNotFound(err), "kube-apiserver has no /configz: %v", err)
	_, err = u.client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "web",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}}}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	has("/metrics/resources", `kube_pod_resource_request\{namespace="default",node="node-.",pod="web",priority="0",`+
		`resource="cpu",scheduler="default-scheduler",unit="cores"\} 0.25`)
	has("/api/v1/nodes/node-1/proxy/metrics/cadvisor", `machine_cpu_cores{`)
	has("/api/v1/nodes/node-1/proxy/metrics/resource", `node_cpu_usage_seconds_total `)
	require.NotContains(t, get("/api/v1/nodes/node-1/proxy/metrics"), "etcd_")
	components, own := 0, strings.TrimPrefix(u.config.Host, "https://")
	for _, line := range regexp.MustCompile(
		`(?m)^(# \w+ )?(workqueue|scheduler|rest_client|leader_election)_.*\n`).FindAllString(get("/metrics"), -1) {
		// The process has one registry, which also counts requests of other tests to their servers.
		if !strings.Contains(line, `host="`) || strings.Contains(line, `host="`+own+`"`) {
			components += len(line)
		}
	}
	require.Less(t, components, 150_000, "TestClients_EveryKindAndVerb describes the other metrics")
}

// etcd's server is linked into every process and has its metrics in the default registry.
func TestEndpoint_HasNoMetricsOfEtcdThatDoesNotRun(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	own := prometheus.NewCounter(prometheus.CounterOpts{Name: "own_total"})
	registry.MustRegister(own)
	w := httptest.NewRecorder()
	(&endpointFlags{}).routes(registry, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	require.Equal(t, http.StatusOK, w.Code)
	for _, family := range []string{"own_total 0\n", "go_goroutines ", "process_resident_memory_bytes "} {
		require.Contains(t, text, family)
	}
	require.NotRegexp(t, `(?m)^(# (HELP|TYPE) )?(etcd|grpc)_`, text)
}
