package node

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

func TestNumbers_ThatAreTooLargeAreClamped(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	pod.Spec.TerminationGracePeriodSeconds, pod.DeletionGracePeriodSeconds = new(int64(math.MaxInt64)),
		new(int64(math.MaxInt64))
	long := 99 * 365 * 24 * time.Hour
	require.Greater(t, runtime.GracePeriod(pod), long)
	require.Greater(t, gracePeriod(pod), long)

	capacity := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110")}
	for _, text := range []string{"9223372036854775807", "1000E", "9Ei"} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			list := corev1.ResourceList{name: resource.MustParse(text)}
			pod.Spec.Containers = []corev1.Container{{Name: "a",
				Resources: corev1.ResourceRequirements{Requests: list}}}
			require.NotNil(t, lacking(requests(pod), nil, capacity), "%s of %s", text, name)
			pod.Spec.Containers = append(pod.Spec.Containers, pod.Spec.Containers[0])
			require.NotNil(t, lacking(requests(pod), nil, capacity), "twice %s of %s", text, name)
		}
	}
}

func TestHostPorts_ConflictOnSharedAddresses(t *testing.T) {
	t.Parallel()
	ports := func(ip string, number int32) hostPorts {
		pod := boundPod("p", "n")
		pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostIP: ip, HostPort: number}}}}
		return hostPortsOf(pod)
	}
	for _, c := range []struct {
		taken, wanted string
		want          bool
	}{
		{"", "", true}, {"", "10.0.0.1", true}, {"10.0.0.1", "", true}, {"10.0.0.1", "0.0.0.0", true},
		{"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false},
	} {
		require.Equal(t, c.want, ports(c.wanted, 80).conflict(ports(c.taken, 80)), "%+v", c)
		require.False(t, ports(c.wanted, 81).conflict(ports(c.taken, 80)), "%+v", c)
		require.False(t, ports(c.wanted, 80).conflict(nil), "%+v", c)
	}
}
