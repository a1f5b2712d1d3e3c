package pvprotection

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

func TestPVProtection_KeepsAVolumeWhileItIsBound(t *testing.T) {
	t.Parallel()
	const other = "example.com/other"
	for name, c := range map[string]struct {
		deleted bool
		phase   corev1.PersistentVolumePhase
		has     []string
		want    []string
	}{
		"new":                      {false, corev1.VolumePending, nil, []string{finalizer}},
		"protected":                {false, corev1.VolumeBound, []string{finalizer}, []string{finalizer}},
		"protected, free":          {false, corev1.VolumeAvailable, []string{finalizer}, []string{finalizer}},
		"deleted while bound":      {true, corev1.VolumeBound, []string{finalizer}, []string{finalizer}},
		"deleted while available":  {true, corev1.VolumeAvailable, []string{other, finalizer}, []string{other}},
		"deleted after release":    {true, corev1.VolumeReleased, []string{finalizer, other}, []string{other}},
		"deleted, without ours":    {true, corev1.VolumeAvailable, []string{other}, []string{other}},
		"deleted, bound, no ours":  {true, corev1.VolumeBound, []string{other}, []string{other}},
		"beside another finalizer": {false, corev1.VolumeBound, []string{other}, []string{other, finalizer}},
	} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Finalizers: c.has},
			Status: corev1.PersistentVolumeStatus{Phase: c.phase}}
		if c.deleted {
			v.DeletionTimestamp = new(metav1.Now())
		}
		e := fakeenv.New(t, v)
		e.Start(New)
		after, err := e.Client().CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
		require.NoError(t, err, name)
		require.Equal(t, c.want, after.Finalizers, name)
		if len(c.want) == len(c.has) {
			require.Empty(t, e.Writes("update", "persistentvolumes"), name)
		}
	}
}
