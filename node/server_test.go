package node_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/coxswain-dev/coxswain/testenv"
)

// talkative returns a simulated pod that writes one line a second.
func talkative(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"sim.coxswain.dev/log": "one\ntwo\nthree\n", "sim.coxswain.dev/cpu": "250m",
			"sim.coxswain.dev/memory": "64Mi",
		}},
		Spec: corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// twoNodes starts a control plane with two Nodes, and returns a context for the test.
func twoNodes(t *testing.T) (context.Context, *kubernetes.Clientset) {
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithoutScheduler(), testenv.WithNodes(2))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx, kubernetes.NewForConfigOrDie(config)
}

func TestEndpoint_ServesLogsAndStatisticsThroughTheAPIServer(t *testing.T) {
	t.Parallel()
	ctx, client := twoNodes(t)
	_, err := client.CoreV1().Pods("default").Create(ctx, talkative("p"), metav1.CreateOptions{})
	require.NoError(t, err)
	pod := awaitReady(ctx, t, client, 1)["p"]

	read := func(o *corev1.PodLogOptions) string {
		t.Helper()
		text, err := client.CoreV1().Pods("default").GetLogs("p", o).DoRaw(ctx)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, "one\ntwo\nthree\n", read(&corev1.PodLogOptions{}))
	require.Equal(t, "three\n", read(&corev1.PodLogOptions{TailLines: new(int64(1))}))
	require.Equal(t, "one\nt", read(&corev1.PodLogOptions{LimitBytes: new(int64(5))}))
	stamped := pod.Status.ContainerStatuses[0].State.Running.StartedAt.UTC().Format("2006-01-02T15:04:05")
	require.Regexp(t, "^"+stamped+`[.0-9]*Z one\n`, read(&corev1.PodLogOptions{Timestamps: true}))
	after := metav1.NewTime(time.Now().Add(time.Hour))
	require.Empty(t, read(&corev1.PodLogOptions{SinceTime: &after}))
	_, err = client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Previous: true}).DoRaw(ctx)
	require.True(t, apierrors.IsBadRequest(err), "it has not ended before: %v", err)

	summary, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-0/proxy/stats/summary").DoRaw(ctx)
	require.NoError(t, err)
	require.Contains(t, string(summary), `"usageNanoCores":250000000`)
	summary, err = client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-1/proxy/stats/summary").DoRaw(ctx)
	require.NoError(t, err)
	require.Contains(t, string(summary), `"nodeName":"node-1"`, "the endpoint that both share knows which is meant")
	require.NotContains(t, string(summary), `"usageNanoCores":250000000`)
	metrics, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-0/proxy/metrics/resource").DoRaw(ctx)
	require.NoError(t, err)
	require.Contains(t, string(metrics),
		`container_memory_working_set_bytes{container="c",namespace="default",pod="p"} 6.7108864e+07`)
}

// Each Node has the metrics of a kubelet, although the Nodes of an agent share an endpoint.
func TestEndpoint_ServesTheMetricsOfAKubelet(t *testing.T) {
	t.Parallel()
	ctx, client := twoNodes(t)
	p := talkative("p")
	p.Spec.Containers[0].Image = `registry.example/"i"\é:1`
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("500m"),
		"memory": resource.MustParse("128Mi")}
	_, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	require.NoError(t, err)
	pod := awaitReady(ctx, t, client, 1)["p"]
	get := func(node, path string) string {
		t.Helper()
		text, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node, "proxy/metrics"+path).DoRaw(ctx)
		require.NoError(t, err)
		parser := expfmt.NewTextParser(model.UTF8Validation)
		_, err = parser.TextToMetricFamilies(bytes.NewReader(text))
		require.NoError(t, err, "%s", text)
		return string(text)
	}
	own := get("node-0", "")
	for _, line := range []string{
		`kubelet_node_name{node="node-0"} 1`, `kubelet_running_pods 1`,
		`kubelet_running_containers{container_state="running"} 1`,
		`kubelet_active_pods{static="false"} 1`,
	} {
		require.Contains(t, own, line+"\n")
	}
	require.Contains(t, get("node-1", ""), "kubelet_running_pods 0\n")

	taken := get("node-0", "/cadvisor")
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	labels := `id="/kubepods/pod` + string(pod.UID) + "/" + id + `",image="registry.example/\"i\"\\é:1",name="` + id +
		`",namespace="default",pod="p"} `
	for _, line := range []string{
		`container_memory_working_set_bytes{container="c",` + labels + `6.7108864e+07`,
		`container_spec_memory_limit_bytes{container="c",` + labels + `1.34217728e+08`,
		`container_spec_cpu_quota{container="c",` + labels + `50000`,
		`container_cpu_usage_seconds_total{container="c",cpu="total",` + labels,
		`container_memory_usage_bytes{container="",id="/kubepods/pod` + string(pod.UID) +
			`",image="",name="",namespace="default",pod="p"} 6.7108864e+07`,
		`machine_memory_bytes{`,
	} {
		require.Contains(t, taken, line)
	}
	require.NotContains(t, get("node-1", "/cadvisor"), `pod="p"`)
	require.Contains(t, get("node-0", "/resource"), `pod_cpu_usage_seconds_total{namespace="default",pod="p"} `)
}

func TestEndpoint_ServesALineForASimulatedContainerWithoutALog(t *testing.T) {
	t.Parallel()
	ctx, client := twoNodes(t)
	pods := client.CoreV1().Pods("default")
	p := talkative("p")
	p.Annotations = map[string]string{"sim.coxswain.dev/failures": "1", "sim.coxswain.dev/exit-code": "2"}
	_, err := pods.Create(ctx, p, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		p, err = pods.Get(ctx, "p", metav1.GetOptions{})
		return err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount == 1 &&
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil
	}, time.Minute, 10*time.Millisecond)
	const line = "simulated container c (image i): no program runs in it, so it writes no log\n"
	for expected, options := range map[string][]corev1.PodLogOptions{
		line: {{}, {Previous: true}, {TailLines: new(int64(1))}, {TailLines: new(int64(9)), Previous: true}},
		"":   {{TailLines: new(int64(0))}},
	} {
		for i := range options {
			text, err := pods.GetLogs("p", &options[i]).DoRaw(ctx)
			require.NoError(t, err)
			require.Equal(t, expected, string(text), "%v", options[i])
		}
	}
	log, err := pods.GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	require.NoError(t, err)
	defer log.Close()
	first := make([]byte, len(line))
	_, err = io.ReadFull(log, first)
	require.NoError(t, err)
	require.Equal(t, line, string(first))
	require.NoError(t, pods.Delete(ctx, "p", metav1.DeleteOptions{}))
	rest, err := io.ReadAll(log)
	require.NoError(t, err, "the log ends with its container")
	require.Empty(t, rest)
}

func TestEndpoint_FollowsALogUntilItsContainerEnds(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithoutScheduler())
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := talkative("p")
	p.Annotations["sim.coxswain.dev/log-every"] = "100ms"
	p.Annotations["sim.coxswain.dev/run-for"] = "1h"
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitReady(ctx, t, client, 1)
	log, err := client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	require.NoError(t, err)
	defer log.Close()
	first := make([]byte, len("one\ntwo\nthree\none\n"))
	_, err = io.ReadFull(log, first)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\none\n", string(first))
	require.NoError(t, client.CoreV1().Pods("default").Delete(ctx, "p", metav1.DeleteOptions{}))
	_, err = io.ReadAll(log)
	require.NoError(t, err, "the log ends with its container")
}

func TestEndpoint_RejectsExecInSimulatedContainers(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithoutScheduler())
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	createBound(ctx, t, client, "p", "node-0")
	awaitReady(ctx, t, client, 1)
	request := client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("p").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"date"}, Stdout: true, Stderr: true},
			scheme.ParameterCodec).URL()
	overSPDY, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, request)
	require.NoError(t, err)
	overWebSocket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, request.String())
	require.NoError(t, err)
	for name, executor := range map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
		require.ErrorContains(t, err, "the container is simulated, no program runs in it", name)
	}
}

// TestEndpoint_AdmitsUsersWithRights sends requests to the agent directly, not through the API server.
func TestEndpoint_AdmitsUsersWithRights(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithoutScheduler())
	client := kubernetes.NewForConfigOrDie(config)
	ctx := t.Context()
	node, err := client.CoreV1().Nodes().Get(ctx, "node-0", metav1.GetOptions{})
	require.NoError(t, err)
	at := fmt.Sprintf("https://127.0.0.1:%d", node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	_, err = client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/metrics"},
			Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "scraper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "scraper"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	code := func(as *rest.Config, path string) int {
		t.Helper()
		tc := &tls.Config{InsecureSkipVerify: true} // it signs its certificate itself
		if as != nil {
			cert, err := tls.X509KeyPair(as.CertData, as.KeyData)
			require.NoError(t, err)
			tc.Certificates = []tls.Certificate{cert}
		}
		transport := &http.Transport{TLSClientConfig: tc}
		defer transport.CloseIdleConnections()
		r, err := (&http.Client{Transport: transport}).Get(at + path)
		require.NoError(t, err)
		_ = r.Body.Close()
		return r.StatusCode
	}
	scraper := testenv.User(t, config, "scraper")
	require.Equal(t, http.StatusUnauthorized, code(nil, "/metrics/resource"))
	require.Equal(t, http.StatusForbidden, code(testenv.User(t, config, "jane"), "/metrics/resource"))
	require.Eventually(t, func() bool {
		return code(testenv.User(t, config, "scraper"), "/metrics/resource") == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, http.StatusForbidden, code(scraper, "/stats/summary"))
	require.Equal(t, http.StatusForbidden, code(scraper, "/pods"))
	require.Equal(t, http.StatusForbidden, code(scraper, "/configz"))
	require.Equal(t, http.StatusOK, code(config, "/configz"))
	require.Equal(t, http.StatusOK, code(config, "/pods"))
	require.Equal(t, http.StatusOK, code(config, "/healthz"))
	require.Equal(t, http.StatusNotFound, code(config, "/containerLogs/default/none/c"))
}

// Without credentials every request has the same answer, whether or not its object exists. Without rights every request
// about a pod has the same answer.
func TestEndpoint_RevealsNoObjectsWithoutRights(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithoutScheduler(), testenv.WithNodes(2))
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	createBound(ctx, t, client, "p", "node-0")
	awaitReady(ctx, t, client, 1)
	node, err := client.CoreV1().Nodes().Get(ctx, "node-0", metav1.GetOptions{})
	require.NoError(t, err)
	at := fmt.Sprintf("127.0.0.1:%d", node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	ask := func(as *rest.Config, request string) string {
		t.Helper()
		tc := &tls.Config{InsecureSkipVerify: true} // it signs its certificate itself
		if as != nil {
			cert, err := tls.X509KeyPair(as.CertData, as.KeyData)
			require.NoError(t, err)
			tc.Certificates = []tls.Certificate{cert}
		}
		conn, err := tls.Dial("tcp", at, tc)
		require.NoError(t, err)
		defer conn.Close()
		line, headers, _ := strings.Cut(request, "\n")
		_, err = io.WriteString(conn, line+" HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n"+
			strings.ReplaceAll(headers, "\n", "\r\n")+"\r\n")
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, request)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return fmt.Sprint(answer.StatusCode, answer.Header.Get("Location"), " ", string(text))
	}
	ofPods := []string{
		"GET /containerLogs/default/p/c", "GET /containerLogs/default/none/c", "GET /containerLogs/default/p/none",
		"GET /containerLogs/none/p/c", "GET /containerLogs/default/p/c\nCoxswain-Node: node-1\n",
		"GET /containerLogs/default/p/c?node=none",
		"GET /exec/default/p/c?command=id\nUpgrade: websocket\n",
		"GET /exec/default/none/c?command=id\nUpgrade: websocket\n",
		"GET /portForward/default/p", "GET /portForward/default/none",
	}
	for _, request := range append(ofPods,
		"GET /", "GET /no/such", "GET //pods", "GET /a/../pods", "GET /runningpods", "GET /pods", "GET /pods?node=none",
		"GET /metrics/resource",
		"GET /stats/summary\nCoxswain-Node: none\n", "GET /healthz", "GET /metrics", "GET /debug/pprof/", "GET /logs/",
		"OPTIONS *", "OPTIONS /pods",
		"PATCH /pods", "DELETE /containerLogs/default/p/c", "GET /pods\nAuthorization: Bearer nonsense\n",
		"GET /pods\nAuthorization: Basic YTpi\n",
		"POST /exec/default/p/c?command=id\nUpgrade: SPDY/3.1\n",
	) {
		require.Equal(t, "401 Unauthorized\n", ask(nil, request), request)
	}
	jane := testenv.User(t, config, "jane")
	for _, request := range ofPods {
		require.Equal(t, "403 Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[proxy])",
			strings.TrimSpace(ask(jane, request)), request)
	}
	require.Contains(t, ask(jane, "GET /pods?node=none"), "403 Forbidden")
	require.Contains(t, ask(config, "GET /pods?node=none"), "400 this agent is not node")
	require.Contains(t, ask(config, "GET /containerLogs/default/none/c"), "404 pod")
	require.Contains(t, ask(config, "GET /containerLogs/default/p/c?node=node-1"), "404 pod", "it is on another node")
	require.Contains(t, ask(config, "GET /containerLogs/default/p/c?node=node-0"), "200 ")
	require.Contains(t, ask(config, "GET /no/such?node=node-0"), "404 404 page not found")
}

// The statistics and the configuration have the fields that collectors read from a kubelet.
func TestEndpoint_ServesTheKubeletsStatisticsAndConfiguration(t *testing.T) {
	t.Parallel()
	ctx, client := twoNodes(t)
	p := talkative("p")
	p.Annotations["sim.coxswain.dev/disk"] = "1Gi"
	_, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	require.NoError(t, err)
	awaitReady(ctx, t, client, 1)
	get := func(path string, into any) {
		t.Helper()
		text, err := client.CoreV1().RESTClient().Get().RequestURI("/api/v1/nodes/node-0/proxy" + path).DoRaw(ctx)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, into), "%s", text)
	}
	type disk struct{ CapacityBytes, AvailableBytes, UsedBytes *int64 }
	type summary struct {
		Node struct {
			Fs      *disk
			Network *struct {
				Name             string
				RxBytes, TxBytes *int64
				Interfaces       []any
			}
			Runtime *struct{ ImageFs, ContainerFs *disk }
			Rlimit  *struct{ MaxPID, CurProc *int64 }
		}
		Pods []struct {
			Ephemeral  *disk `json:"ephemeral-storage"`
			Network    *struct{ Name string }
			Containers []struct{ Rootfs, Logs *disk }
		}
	}
	var s summary
	get("/stats/summary", &s)
	require.EqualValues(t, 1<<40, *s.Node.Fs.CapacityBytes)
	require.EqualValues(t, 1<<30, *s.Node.Fs.UsedBytes)
	require.EqualValues(t, 1<<40-1<<30, *s.Node.Fs.AvailableBytes)
	require.EqualValues(t, 1<<40, *s.Node.Runtime.ImageFs.CapacityBytes)
	require.Equal(t, "eth0", s.Node.Network.Name)
	require.Zero(t, *s.Node.Network.RxBytes)
	require.Len(t, s.Node.Network.Interfaces, 1)
	require.EqualValues(t, 1, *s.Node.Rlimit.CurProc)
	require.Len(t, s.Pods, 1)
	require.EqualValues(t, 1<<30, *s.Pods[0].Ephemeral.UsedBytes)
	require.EqualValues(t, 1<<30, *s.Pods[0].Containers[0].Rootfs.UsedBytes)
	require.Equal(t, "eth0", s.Pods[0].Network.Name)
	var short summary
	get("/stats/summary?only_cpu_and_memory=true", &short)
	require.Len(t, short.Pods, 1)
	require.Nil(t, short.Node.Fs)
	require.Nil(t, short.Pods[0].Ephemeral)

	var c struct {
		KubeletConfig struct {
			MaxPods                   int
			ClusterDomain             string
			NodeStatusUpdateFrequency string
			NodeLeaseDurationSeconds  int
			EvictionHard              map[string]string
		}
	}
	get("/configz", &c)
	require.Equal(t, 1000, c.KubeletConfig.MaxPods)
	require.Equal(t, "cluster.local", c.KubeletConfig.ClusterDomain)
	require.Equal(t, "10s", c.KubeletConfig.NodeStatusUpdateFrequency)
	require.Equal(t, 40, c.KubeletConfig.NodeLeaseDurationSeconds)
	require.Equal(t, "100Mi", c.KubeletConfig.EvictionHard["memory.available"])
	probes, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node-0/proxy/metrics/probes").DoRaw(ctx)
	require.NoError(t, err)
	require.Empty(t, string(probes), "simulated containers are not probed")
}
