package framework

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

func TestResource_AmountsAboveTheMaximumFitNoNode(t *testing.T) {
	t.Parallel()
	room := NewResource(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"),
		corev1.ResourceMemory:           resource.MustParse("1Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Ti"), "example.com/gpu": resource.MustParse("8"),
		corev1.ResourcePods: resource.MustParse("110")})
	for _, text := range []string{"9223372036854775807", "1000E", "9Ei", "1e30", "4E"} {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
			corev1.ResourceEphemeralStorage, "example.com/gpu"} {
			for _, containers := range []int{1, 2, 4} {
				pod := &corev1.Pod{}
				for range containers {
					pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse(
							text)}},
					})
				}
				requests, scored := podRequests(pod)
				require.False(t, requests.Within(&room), "%d × %s of %s", containers, text, name)
				require.False(t, scored.Within(&room), "%d × %s of %s", containers, text, name)
				// A client can bind pods to a Node without the scheduler.
				var used Resource
				for range 500 {
					used.Add(requests, 1)
				}
				require.False(t, used.Within(&room), "500 × %d × %s of %s", containers, text, name)
			}
		}
	}
}

func TestResource_AmountsAreExact(t *testing.T) {
	t.Parallel()
	r := NewResource(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"),
		corev1.ResourceMemory:           resource.MustParse("128Mi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("0.5"), "example.com/gpu": resource.MustParse("3"),
		corev1.ResourcePods: resource.MustParse("110")})
	require.Equal(t, Resource{MilliCPU: 1500, Memory: 128 << 20, EphemeralStorage: 1, Pods: 110,
		Scalar: map[corev1.ResourceName]int64{"example.com/gpu": 3}}, r)
}

func TestNodeInfo_PortsFree(t *testing.T) {
	t.Parallel()
	port := func(ip string, number int32) *corev1.Pod {
		pod := &corev1.Pod{}
		pod.UID = types.UID(ip)
		pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostIP: ip, HostPort: number}}}}
		return pod
	}
	for _, c := range []struct {
		taken, wanted string
		free          bool
	}{
		{"", "", false}, {"", "10.0.0.1", false}, {"10.0.0.1", "", false}, {"10.0.0.1", "0.0.0.0", false},
		{"10.0.0.1", "10.0.0.1", false}, {"10.0.0.1", "10.0.0.2", true},
	} {
		node := NewNodeInfo(nil, NewPodInfo(port(c.taken, 80)))
		require.Equal(t, c.free, node.PortsFree(NewPodInfo(port(c.wanted, 80)).HostPorts), "%+v", c)
		require.True(t, node.PortsFree(NewPodInfo(port(c.wanted, 81)).HostPorts), "%+v", c)
		node.RemovePod(types.UID(c.taken))
		require.True(t, node.PortsFree(NewPodInfo(port(c.wanted, 80)).HostPorts), "%+v", c)
		require.Empty(t, node.UsedPorts)
	}
}

// BenchmarkNodeInfo_PortsFree: ten times as many ports must cost about ten times as much. A pod can have tens of
// thousands of them, and they are checked on each node.
func BenchmarkNodeInfo_PortsFree(b *testing.B) {
	for _, count := range []int32{6_000, 60_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			many := func(ip string) *PodInfo {
				pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
				for i := range count {
					pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports,
						corev1.ContainerPort{HostIP: ip, HostPort: i + 1})
				}
				return NewPodInfo(pod)
			}
			node, ports := NewNodeInfo(nil, many("10.0.0.1")), many("10.0.0.2").HostPorts
			for b.Loop() {
				require.True(b, node.PortsFree(ports))
			}
		})
	}
}
