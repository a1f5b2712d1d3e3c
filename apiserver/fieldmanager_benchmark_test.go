package apiserver

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// benchmarkPod is a defaulted pod of some 2 kB.
func benchmarkPod(b *testing.B) (*api.Resource, *corev1.Pod) {
	registry := api.NewRegistry(api.Builtin()...)
	res := registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod := fresh(res).(*corev1.Pod)
	pod.Name, pod.Namespace = "web-7c5b8f9d6-abcde", "default"
	pod.Labels = map[string]string{"app": "web", "pod-template-hash": "7c5b8f9d6", "tier": "front", "team": "blue"}
	pod.Annotations = map[string]string{"checksum/config": "8f14e45fceea167a5a36dedd4bea2543", "owner": "blue@example.com"}
	for i := range 2 {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "registry.example.com/team/web:1.2.3"}
		c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}}
		for j := range 4 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: "value"})
		}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config", ReadOnly: true}}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}}}
	res.Default(pod)
	return res, pod
}

func benchmarkWriter() writer {
	return writer{manager: "bench", apiVersion: "v1", at: metav1.Now().Rfc3339Copy()}
}

func BenchmarkOwnership_Create(b *testing.B) {
	res, pod := benchmarkPod(b)
	w := benchmarkWriter()
	b.ReportAllocs()
	for b.Loop() {
		ownNew(res, pod, w)
	}
}

func BenchmarkOwnership_PatchOfALabel(b *testing.B) {
	res, pod := benchmarkPod(b)
	pod.ManagedFields = ownNew(res, pod, benchmarkWriter())
	kinds := api.NewRegistry(res).Snapshot()
	changed := pod.DeepCopy()
	changed.Labels["tier"] = "back"
	for _, manager := range []string{"bench", "other"} {
		b.Run("by="+manager, func(b *testing.B) {
			w := benchmarkWriter()
			w.manager = manager
			b.ReportAllocs()
			for b.Loop() {
				_, err := ownChanged(kinds, res, changed, pod, pod.ManagedFields, w)
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkOwnership_CreateByTheLibrary is what the fast path is measured against.
func BenchmarkOwnership_CreateByTheLibrary(b *testing.B) {
	res, pod := benchmarkPod(b)
	var all appliers
	library, err := all.of(api.NewRegistry(res), res, "")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := library.Update(fresh(res), pod, "bench")
		require.NoError(b, err)
	}
}

// BenchmarkOwnership_Encoding is what the entries add to encoding and decoding the pod.
func BenchmarkOwnership_Encoding(b *testing.B) {
	res, pod := benchmarkPod(b)
	for _, entries := range [][]metav1.ManagedFieldsEntry{nil, ownNew(res, pod, benchmarkWriter())} {
		pod.ManagedFields = entries
		b.Run(fmt.Sprintf("entries=%d", len(entries)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				doc, err := json.Marshal(pod)
				require.NoError(b, err)
				b.SetBytes(int64(len(doc)))
				require.NoError(b, unmarshal(doc, reflect.New(reflect.TypeFor[corev1.Pod]()).Interface()))
			}
		})
	}
}
