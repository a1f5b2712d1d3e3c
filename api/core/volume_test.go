package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPersistentVolume_StartsPendingAtItsCreation(t *testing.T) {
	t.Parallel()
	created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	chosen := metav1.NewTime(created.Add(-time.Hour))
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: created},
		Status:     corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound, LastPhaseTransitionTime: &chosen},
	}
	persistentVolumes().Status.Reset(v)
	require.Equal(t, corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &created},
		v.Status, "whatever the client has sent")
}

func TestPersistentVolume_RecordsPhaseTransitionTime(t *testing.T) {
	t.Parallel()
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	before, chosen := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now.Add(-time.Minute))
	status := func(phase corev1.PersistentVolumePhase, since *metav1.Time) corev1.PersistentVolumeStatus {
		return corev1.PersistentVolumeStatus{Phase: phase, LastPhaseTransitionTime: since}
	}
	for name, c := range map[string]struct {
		was, is corev1.PersistentVolumeStatus
		want    *metav1.Time
	}{
		"first":     {status(corev1.VolumePending, nil), status(corev1.VolumeAvailable, nil), &now},
		"next":      {status(corev1.VolumeAvailable, &before), status(corev1.VolumeBound, before.DeepCopy()), &now},
		"left out":  {status(corev1.VolumeAvailable, &before), status(corev1.VolumeBound, nil), &now},
		"chosen":    {status(corev1.VolumeAvailable, &before), status(corev1.VolumeBound, &chosen), &chosen},
		"unchanged": {status(corev1.VolumeBound, &before), status(corev1.VolumeBound, &before), &before},
	} {
		v := &corev1.PersistentVolume{Status: c.is}
		setPhaseTransitionTime(v, &corev1.PersistentVolume{Status: c.was}, now)
		require.Equal(t, c.want, v.Status.LastPhaseTransitionTime, name)
	}
}
