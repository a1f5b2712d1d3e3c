package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node"
)

func memory(amount string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func (p *programs) resize(pod *corev1.Pod, amount string) {
	p.t.Helper()
	patch := `{"spec":{"containers":[{"name":"c","resources":{"requests":{"memory":"` + amount +
		`"},"limits":{"memory":"` + amount + `"}}}]}}`
	_, err := p.CoreV1().Pods("default").Patch(p.t.Context(), pod.Name, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, "resize")
	require.NoError(p.t, err)
}

// A container sees its new limit in its cgroup, and the status reports when the container has it.
func TestPrograms_AreResizedInPlace(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{})
	pod := p.run("p", "node-0",
		`while :; do cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; sleep 0.05; done`,
		func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources = memory("64Mi") })
	p.logs(pod, "67108864")
	has := func(amount string, restarts int32, generation int64) {
		t.Helper()
		p.eventually("the status has "+amount, func() bool {
			seen := p.pod("p")
			if len(seen.Status.ContainerStatuses) == 0 {
				return false
			}
			s := seen.Status.ContainerStatuses[0]
			for _, c := range seen.Status.Conditions {
				if c.Type == corev1.PodResizeInProgress || c.Type == corev1.PodResizePending {
					return false
				}
			}
			want := resource.MustParse(amount)
			return s.RestartCount == restarts && s.State.Running != nil &&
				seen.Status.ObservedGeneration == generation && s.Resources != nil &&
				s.Resources.Limits.Memory().Equal(want) && s.AllocatedResources.Memory().Equal(want)
		})
	}
	has("64Mi", 0, 1)
	p.resize(pod, "128Mi")
	p.logs(pod, "134217728")
	has("128Mi", 0, 2)

	p.resize(pod, "1Pi")
	p.eventually("no machine has as much", func() bool {
		for _, c := range p.pod("p").Status.Conditions {
			if c.Type == corev1.PodResizePending {
				return c.Reason == corev1.PodReasonInfeasible && c.ObservedGeneration == 3
			}
		}
		return false
	})
	p.resize(pod, "32Mi")
	p.logs(pod, "33554432")
	has("32Mi", 0, 4)
}

func TestPrograms_AreRestartedWhenTheirImageChanges(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{})
	pod := p.run("p", "node-0", "echo begun; sleep 1000")
	p.logs(pod, "begun")
	_, err := p.CoreV1().Pods("default").Patch(t.Context(), "p", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"c","image":"other"}]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	p.eventually("it runs again, with the other image", func() bool {
		all := p.pod("p").Status.ContainerStatuses
		return len(all) == 1 && all[0].Image == "other" && all[0].ImageID == "host://other" &&
			all[0].RestartCount == 1 && all[0].State.Running != nil
	})
}

func TestPrograms_SetSysctlsOrAreRejected(t *testing.T) {
	t.Parallel()
	p := startPrograms(t, node.Options{AllowedUnsafeSysctls: []string{"net.no.*"}})
	with := func(name string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: name, Value: "77"}}}
		}
	}
	pod := p.run("safe", "node-0", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; sleep 1000",
		with("net.ipv4.ip_unprivileged_port_start"))
	p.logs(pod, " 77\n")
	p.run("refused", "node-0", "true", with("net.ipv4.ip_forward"))
	p.eventually("it is refused", func() bool { return p.pod("refused").Status.Reason == "SysctlForbidden" })
	p.run("missing", "node-0", "true", with("net.no.such"))
	p.eventually("an Event says what cannot be set", func() bool {
		events, err := p.CoreV1().Events("default").List(t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=missing,reason=FailedCreatePodSandBox"})
		require.NoError(t, err)
		return len(events.Items) > 0
	})
	require.Equal(t, corev1.PodPending, p.pod("missing").Status.Phase)
}
