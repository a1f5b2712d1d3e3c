package node

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

// hosted returns an agent and a simulated pod that it has taken on.
func hosted(t testing.TB, pod *corev1.Pod) (*agent, *hostedPod) {
	t.Helper()
	o := Options{Clock: clocktesting.NewFakeClock(start)}
	require.NoError(t, o.complete())
	a, err := newAgent([]*link{{client: fake.NewClientset()}}, o, o.newRuntime)
	require.NoError(t, err)
	p := a.newHostedPod(pod, start)
	p.state.SetAddresses([]string{"10.244.0.2"})
	return a, p
}

func TestStatusPatch_KeepsConditionsOfOtherClients(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "node-0", simulated.AnnotationReadyAfter, "0s")
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}}
	pod.Status.Conditions = append(pod.Status.Conditions,
		corev1.PodCondition{Type: "lb", Status: corev1.ConditionTrue})
	a, p := hosted(t, pod)
	a.advance(t.Context(), p)
	s := p.state.Status(start, nil)
	require.Equal(t, corev1.ConditionTrue, findCondition(s.Conditions, corev1.PodReady).Status)
	patch, err := statusPatch(p, pod, p.state.Own(s), s.Conditions)
	require.NoError(t, err)
	require.NotContains(t, string(patch), `"type":"lb","status"`, "the cache may show it as it was")
	require.Equal(t, 1, strings.Count(string(patch), `"lb"`), "but the order has it: %s", patch)
}

// BenchmarkStatus measures the agent's own work for the start of a simulated pod.
func BenchmarkStatus(b *testing.B) {
	pod := boundPod("p", "node-0")
	a, _ := hosted(b, pod)
	b.ReportAllocs()
	for b.Loop() {
		p := a.newHostedPod(pod, start)
		p.state.SetAddresses([]string{"10.244.0.2"})
		if next := a.advance(b.Context(), p); !next.Equal(time.Time{}) {
			b.Fatal(next)
		}
		s := p.state.Status(start, nil)
		if _, err := statusPatch(p, pod, p.state.Own(s), s.Conditions); err != nil {
			b.Fatal(err)
		}
	}
}
