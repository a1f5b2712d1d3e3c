package node

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestReserved_IsNotAllocatable(t *testing.T) {
	t.Parallel()
	reserved := corev1.ResourceList{}
	require.NoError(t, AddReserved(reserved, map[string]string{"cpu": "200m", "memory": "1Gi"}))
	require.NoError(t, AddReserved(reserved, map[string]string{"cpu": "300m"}))
	require.Zero(t, reserved.Cpu().Cmp(resource.MustParse("500m")))
	require.EqualError(t, AddReserved(reserved, map[string]string{"pid": "5"}),
		`"pid" is not one of cpu, memory and ephemeral-storage`)
	for _, amount := range []string{"-1", "much", ""} {
		require.EqualError(t, AddReserved(reserved, map[string]string{"cpu": amount}),
			"cpu="+amount+" is no quantity of 0 or more")
	}
	o := &Options{Reserved: reserved}
	require.NoError(t, o.complete())
	require.Zero(t, o.Capacity.Cpu().Cmp(resource.MustParse("32")))
	left := o.allocatable()
	require.Zero(t, left.Cpu().Cmp(resource.MustParse("31500m")))
	require.Zero(t, left.Memory().Cmp(resource.MustParse("127Gi")))
	o = &Options{Reserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32")}}
	require.EqualError(t, o.complete(),
		"--kube-reserved and --system-reserved: 32 of cpu is not less than the capacity of 32")

	// a pod that fits the capacity, but not the allocatable part
	c := startCluster(t, Options{Reserved: reserved})
	large := boundPod("large", "node-0")
	large.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("31800m")}
	c.create(large)
	c.later(0, "it is refused", func() bool { return c.pod("large").Status.Reason == "OutOfcpu" })
}
