package volumes_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/node/environment"
	"github.com/coxswain-dev/coxswain/node/volumes"
)

func TestSetUp_ResolvesClaimsOfThePod(t *testing.T) {
	t.Parallel()
	pod := podOfVolumes("p",
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c",
			ReadOnly: true}},
		corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
	claim := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	volume.Spec.Local = &corev1.LocalVolumeSource{Path: t.TempDir()}
	set := func(own *corev1.PersistentVolumeClaim) (map[string]volumes.Source, error) {
		client := fake.NewClientset(claim("c"), own, volume)
		v := &volumes.Volumes{Clock: clock.RealClock{}}
		return v.SetUp(t.Context(), &environment.Environment{Client: client, Pod: pod}, filepath.Join(t.TempDir(), "v"))
	}
	foreign := claim("p-v2")
	_, err := set(foreign)
	require.ErrorContains(t, err, "PVC default/p-v2 was not created for pod default/p (pod is not owner)")
	foreign.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: pod.UID, Controller: ptr.To(true)}}
	sources, err := set(foreign)
	require.NoError(t, err)
	require.False(t, sources["v0"].ReadOnly)
	require.True(t, sources["v1"].ReadOnly)
	require.Equal(t, volume.Spec.Local.Path, sources["v2"].Path)
}
