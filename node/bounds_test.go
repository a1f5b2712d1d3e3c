package node

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

func TestAccount_SaturatesHugeRequests(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	pod.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
	require.Equal(t, amount.Longest, runtime.GracePeriod(pod))

	var a account
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods: resource.MustParse("10")}
	asking := func(name, memory string) *corev1.Pod {
		pod := boundPod(name, "n")
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(
			memory)}
		return pod
	}
	require.True(t, a.take("one", demandOf(asking("one", "1Mi")), capacity))
	require.False(t, a.take("two", demandOf(asking("two", "9223372036854775807")), capacity),
		"the sum is more than a number holds")
	a.note("old", demandOf(asking("old", "9223372036854775807")))
	a.note("older", demandOf(asking("older", "9223372036854775807")))
	require.False(t, a.take("three", demandOf(asking("three", "1Mi")), capacity), "the node is full")
	a.release("old")
	a.release("older")
	require.True(t, a.take("three", demandOf(asking("three", "1Mi")), capacity), "there is room again")

	stats, _ := asStats(runtime.Usage{CPU: 1e6, CPUSeconds: 1e15}, start)
	require.EqualValues(t, uint64(1e15), stats.UsageNanoCores)
	require.EqualValues(t, uint64(1<<63), stats.UsageCoreNanoSeconds)
}
