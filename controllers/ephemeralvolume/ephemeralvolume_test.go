package ephemeralvolume

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func podWithVolume() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-1"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")},
			}}}},
		{Name: "named", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}
	return pod
}

func claims(t *testing.T, e *fakeenv.Env) []corev1.PersistentVolumeClaim {
	list, err := e.Client().CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

func TestEphemeralVolume_CreatesTheClaimOfThePod(t *testing.T) {
	t.Parallel()
	pod := podWithVolume()
	e := fakeenv.New(t, pod)
	e.Start(New)
	made := claims(t, e)
	require.Len(t, made, 1)
	require.Equal(t, "p-scratch", made[0].Name)
	require.Equal(t, map[string]string{"app": "web"}, made[0].Labels)
	require.Equal(t, "fast", *made[0].Spec.StorageClassName)
	require.True(t, metav1.IsControlledBy(&made[0], pod))
	require.NoError(t, e.Client().CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "p-scratch",
		metav1.DeleteOptions{}))
	e.Eventually("it is made again", func() bool { return len(claims(t, e)) == 1 })
	e.Eventually("both are counted", func() bool {
		return seriestest.Value(t, e.Registry, "ephemeral_volume_controller_create_total") == 2
	})
	require.Zero(t, seriestest.Value(t, e.Registry, "ephemeral_volume_controller_create_failures_total"))
}

func TestEphemeralVolume_RejectsClaimsOfOtherOwners(t *testing.T) {
	t.Parallel()
	earlier := podWithVolume()
	earlier.UID = "p-0"
	for name, owners := range map[string][]metav1.OwnerReference{
		"a user's":                           nil,
		"that of an earlier pod of the name": {*metav1.NewControllerRef(earlier, corev1.SchemeGroupVersion.WithKind("Pod"))},
	} {
		e := fakeenv.New(t, podWithVolume(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "p-scratch", OwnerReferences: owners}})
		e.Start(New)
		require.Contains(t, strings.Join(e.Events(), "\n"), "Warning FailedBinding ephemeral volume scratch", name)
		require.Empty(t, e.Writes("create", "persistentvolumeclaims"), name)
		require.Empty(t, e.Writes("update", "persistentvolumeclaims"), name)
	}
}

func TestEphemeralVolume_CreatesNoClaimForADeletedPod(t *testing.T) {
	t.Parallel()
	pod := podWithVolume()
	pod.DeletionTimestamp, pod.Finalizers = new(metav1.Now()), []string{"example.com/hold"}
	e := fakeenv.New(t, pod)
	e.Start(New)
	require.Empty(t, claims(t, e))
}
