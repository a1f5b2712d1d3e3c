package node

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

func TestStorage_IsLimitedLikeInTheKubelet(t *testing.T) {
	t.Parallel()
	limited := func(name, limit string) corev1.Container {
		c := corev1.Container{Name: name}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		return c
	}
	limit := resource.MustParse("1Mi")
	volume := func(name string, e corev1.EmptyDirVolumeSource) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &e}}
	}
	pod := boundPod("p", "n")
	pod.Spec.Containers = []corev1.Container{limited("a", "1Mi"), limited("b", "2Mi")}
	pod.Spec.Volumes = []corev1.Volume{volume("v", corev1.EmptyDirVolumeSource{SizeLimit: &limit}),
		volume("free", corev1.EmptyDirVolumeSource{})}
	require.True(t, limitsStorage(pod))
	const mi = 1 << 20
	use := func(a, b, v, free int64) runtime.LocalStorage {
		return runtime.LocalStorage{Containers: map[string]int64{"a": a, "b": b},
			Volumes: map[string]int64{"v": v, "free": free}}
	}
	require.Empty(t, exceedsStorage(pod, use(mi, mi, mi, 0)))
	require.Equal(t, `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `, exceedsStorage(pod, use(0, 0, mi+1, 0)))
	require.Equal(t, "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ",
		exceedsStorage(pod, use(mi, mi, 0, mi+1)))
	require.Equal(t, `Container a exceeded its local ephemeral storage limit "1Mi". `,
		exceedsStorage(pod, use(mi+1, 0, 0, 0)))
	pod.Spec.Containers[1] = limited("b", "")
	require.Empty(t, exceedsStorage(pod, use(0, 10*mi, 0, mi)), "a container without a limit may take what it likes")
	pod.Spec.Containers[0], pod.Spec.Volumes = limited("a", ""), nil
	require.False(t, limitsStorage(pod))
}
