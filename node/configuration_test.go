package node

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestConfiguration_HasTheOptionsInKubernetesForm(t *testing.T) {
	t.Parallel()
	o := Options{ClusterDNS: []string{"10.96.0.10"}, ShutdownGracePeriod: time.Minute,
		Reserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}}
	o.Eviction.Soft, o.Eviction.SoftGracePeriod = []string{"memory.available<1Gi"}, []string{"memory.available=1m30s"}
	require.NoError(t, o.complete())
	text, err := json.Marshal(o.configuration(10250))
	require.NoError(t, err)
	var c map[string]any
	require.NoError(t, json.Unmarshal(text, &c))
	for field, want := range map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "port": 10250.0,
		"clusterDomain": "cluster.local", "clusterDNS": []any{"10.96.0.10"}, "maxPods": 1000.0, "podPidsLimit": -1.0,
		"nodeLeaseDurationSeconds": 40.0, "shutdownGracePeriod": "1m0s",
		"kubeReserved":            map[string]any{"cpu": "200m"},
		"evictionSoft":            map[string]any{"memory.available": "1Gi"},
		"evictionSoftGracePeriod": map[string]any{"memory.available": "1m30s"},
		"evictionHard": map[string]any{"memory.available": "100Mi", "nodefs.available": "10%",
			"nodefs.inodesFree": "5%", "imagefs.available": "15%"},
	} {
		require.Equal(t, want, c[field], field)
	}
}
