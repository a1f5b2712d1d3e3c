package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// TestRun_WorksWithAnyAPIServer covers everything that an agent needs from a Kubernetes API server: Nodes become Ready
// with their Leases, and pods start, restart, fail, are rejected and end.
func TestRun_WorksWithAnyAPIServer(t *testing.T) {
	t.Parallel()
	config, client, id := testenv.Guest(t)
	ctx := t.Context()
	stop := startNodes(t, config, node.Options{Count: 2, Prefix: id + "-"})
	defer func() {
		stop()
		for i := range 2 {
			require.NoError(t, client.CoreV1().Nodes().Delete(ctx, fmt.Sprintf("%s-%d", id, i), metav1.DeleteOptions{}))
		}
	}()
	eventually := func(what string, condition func() bool) {
		t.Helper()
		require.Eventually(t, condition, time.Minute, 50*time.Millisecond, what)
	}
	for i := range 2 {
		name := fmt.Sprintf("%s-%d", id, i)
		eventually("the Node is Ready", func() bool {
			n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					return c.Status == corev1.ConditionTrue
				}
			}
			return false
		})
		eventually("its heart beats", func() bool {
			_, err := client.CoordinationV1().Leases("kube-node-lease").Get(ctx, name, metav1.GetOptions{})
			return err == nil
		})
	}
	pod := func(name string) *corev1.Pod {
		p, err := client.CoreV1().Pods(id).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return &corev1.Pod{}
		}
		return p
	}
	create := func(name string, annotations map[string]string, change func(*corev1.PodSpec)) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.PodSpec{
			NodeName: id + "-0", AutomountServiceAccountToken: new(bool), TerminationGracePeriodSeconds: new(int64(5)),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "c", Image: "any"}},
		}}
		change(&p.Spec)
		_, err := client.CoreV1().Pods(id).Create(ctx, p, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create("server", nil, func(*corev1.PodSpec) {})
	create("job", map[string]string{"sim.coxswain.dev/run-for": "1s"}, func(s *corev1.PodSpec) {
		s.RestartPolicy = corev1.RestartPolicyNever
	})
	create("crash", map[string]string{"sim.coxswain.dev/exit-code": "3"}, func(*corev1.PodSpec) {})
	create("elsewhere", nil, func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"no": "where"} })
	eventually("a server is ready", func() bool { return isReady(pod("server")) })
	require.NotEmpty(t, pod("server").Status.PodIP)
	eventually("a job ends", func() bool { return pod("job").Status.Phase == corev1.PodSucceeded })
	eventually("a crash is restarted", func() bool {
		s := pod("crash").Status.ContainerStatuses
		return len(s) == 1 && s[0].RestartCount > 0 && s[0].State.Waiting != nil &&
			s[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	eventually("who does not belong here is refused", func() bool {
		return pod("elsewhere").Status.Reason == "NodeAffinity"
	})
	require.NoError(t, client.CoreV1().Pods(id).Delete(ctx, "server", metav1.DeleteOptions{}))
	eventually("a deleted pod goes", func() bool { return pod("server").Name == "" })
}
