package policy_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/network/policy"
	"github.com/coxswain-dev/coxswain/testenv"
)

const limit = 30 * time.Second

// run runs an enforcer until the test ends, or until the caller calls stop.
func run(t *testing.T, config *rest.Config, o policy.Options) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- policy.Run(ctx, config, o) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

func createPod(t *testing.T, client kubernetes.Interface, name string, address netip.Addr) {
	t.Helper()
	pods := client.CoreV1().Pods("default")
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "here", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod.Status.PodIP, pod.Status.PodIPs = address.String(), []corev1.PodIP{{IP: address.String()}}
	pod.Status.Phase = corev1.PodRunning
	_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func TestRun_EnforcesPoliciesOfTheAPIServer(t *testing.T) {
	t.Parallel()
	lab, addresses := policy.NewLab(t, 80, 10, 11, 12)
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	createPod(t, client, "web", addresses[0])
	createPod(t, client, "front", addresses[1])
	createPod(t, client, "back", addresses[2])

	registry := prometheus.NewRegistry()
	o := policy.Options{Namespace: lab.Router(), Nodes: []string{"here"}, Metrics: registry,
		Log: slog.New(slog.DiscardHandler)}
	stop := run(t, config, o)
	require.Eventually(t, func() bool {
		n, err := testutil.GatherAndCount(registry, "coxswain_network_policy_sync_duration_seconds")
		return err == nil && n > 0
	}, limit, time.Millisecond)
	require.True(t, lab.Reaches(addresses[1], addresses[0], 80))

	policies := client.NetworkingV1().NetworkPolicies("default")
	deny, err := policies.Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	took, dropped := lab.DropsSoon(addresses[1], addresses[0], 80, limit)
	require.True(t, dropped)
	t.Logf("enforced after %v", took)

	deny.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}}}}}}
	_, err = policies.Update(t.Context(), deny, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return lab.Reaches(addresses[1], addresses[0], 80) }, limit, time.Millisecond)
	require.False(t, lab.Reaches(addresses[2], addresses[0], 80))

	stop()
	require.False(t, lab.Reaches(addresses[2], addresses[0], 80), "the rules stay in the kernel")
	o.Metrics = nil
	run(t, config, o)
	require.NoError(t, policies.Delete(t.Context(), "deny", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return lab.Reaches(addresses[2], addresses[0], 80) }, limit, time.Millisecond)
}

func TestRun_RequiresNodes(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, policy.Run(t.Context(), &rest.Config{}, policy.Options{}), "no Nodes")
}

// unstarted creates a pod of this machine without an address.
func unstarted(t *testing.T, client kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	pod, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "here", Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return pod
}

func TestEnforcer_ProtectsAPodBeforeItStarts(t *testing.T) {
	t.Parallel()
	const pods = 12
	lab, addresses := policy.NewLab(t, 80, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22)
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	e, err := policy.New(config, policy.Options{Namespace: lab.Router(), Nodes: []string{"here"},
		Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	for i := range pods {
		name := fmt.Sprint("pod-", i)
		_, err := client.NetworkingV1().NetworkPolicies("default").Create(t.Context(), &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}}}, metav1.CreateOptions{})
		require.NoError(t, err)
		pod := unstarted(t, client, name)
		require.NoError(t, e.Protect(t.Context(), pod, addresses[i]))
		conn, err := lab.Connect(addresses[pods], addresses[i], 80, 50*time.Millisecond)
		if err == nil {
			_ = conn.Close()
		}
		require.Error(t, err, "%s is isolated from the first packet on", name)
	}
	pod, err := client.CoreV1().Pods("default").Get(t.Context(), "pod-0", metav1.GetOptions{})
	require.NoError(t, err)
	pod.Status.PodIP, pod.Status.PodIPs = "10.9.9.9", []corev1.PodIP{{IP: "10.9.9.9"}}
	_, err = client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, e.Protect(t.Context(), unstarted(t, client, "later"), addresses[pods]))
	require.False(t, lab.Reaches(addresses[pods], addresses[0], 80), "another pod's status does not take its address")
}

func TestEnforcer_ProtectsNoPodWithoutPermissionToListPolicies(t *testing.T) {
	t.Parallel()
	lab, addresses := policy.NewLab(t, 80, 10)
	config := testenv.Start(t, testenv.APIServerOnly())
	pod := unstarted(t, kubernetes.NewForConfigOrDie(config), "web")
	powerless := rest.CopyConfig(config)
	powerless.Impersonate = rest.ImpersonationConfig{UserName: "nobody"}
	changed := make(chan struct{}, 100)
	e, err := policy.New(powerless, policy.Options{Namespace: lab.Router(), Nodes: []string{"here"},
		Log: slog.New(slog.DiscardHandler), Changed: func() { changed <- struct{}{} }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	require.ErrorContains(t, e.Protect(t.Context(), pod, addresses[0]), "forbidden")
	<-changed
	require.ErrorContains(t, e.Problem(), "network policies are not known")
	require.ErrorContains(t, e.Problem(), "forbidden")
}
