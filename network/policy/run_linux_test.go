package policy_test

import (
	"context"
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

// run runs an enforcer until the test ends, or until stop is called.
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

func TestRun_EnforcesWhatTheAPIServerHas(t *testing.T) {
	t.Parallel()
	lab, at := policy.NewLab(t, 80, 10, 11, 12)
	config := testenv.Start(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(config)
	createPod(t, client, "web", at[0])
	createPod(t, client, "front", at[1])
	createPod(t, client, "back", at[2])

	registry := prometheus.NewRegistry()
	o := policy.Options{Namespace: lab.Router(), Nodes: []string{"here"}, Metrics: registry,
		Log: slog.New(slog.DiscardHandler)}
	stop := run(t, config, o)
	require.Eventually(t, func() bool {
		n, err := testutil.GatherAndCount(registry, "coxswain_network_policy_sync_duration_seconds")
		return err == nil && n > 0
	}, limit, time.Millisecond)
	require.True(t, lab.Reaches(at[1], at[0], 80))

	policies := client.NetworkingV1().NetworkPolicies("default")
	deny, err := policies.Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	took, dropped := lab.DropsSoon(at[1], at[0], 80, limit)
	require.True(t, dropped)
	t.Logf("enforced after %v", took)

	deny.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}}}}}}
	_, err = policies.Update(t.Context(), deny, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return lab.Reaches(at[1], at[0], 80) }, limit, time.Millisecond)
	require.False(t, lab.Reaches(at[2], at[0], 80))

	stop()
	require.False(t, lab.Reaches(at[2], at[0], 80), "the rules stay")
	o.Metrics = nil
	run(t, config, o)
	require.NoError(t, policies.Delete(t.Context(), "deny", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return lab.Reaches(at[2], at[0], 80) }, limit, time.Millisecond)
}

func TestRun_NeedsNodes(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, policy.Run(t.Context(), &rest.Config{}, policy.Options{}), "no Nodes")
}
