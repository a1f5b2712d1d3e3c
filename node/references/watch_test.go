package references_test // because testenv imports references

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/node/references"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestReferences_ShareWatchesAndNotifyReaders(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	ctx, cancel := context.WithCancel(t.Context())
	var watches sync.WaitGroup
	changed := make(chan string, 100)
	r := references.New(ctx, &watches, func(pod runtime.PodKey) { changed <- pod.Name })
	t.Cleanup(func() {
		cancel()
		watches.Wait()
	})
	maps := client.CoreV1().ConfigMaps("default")
	cm, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	pod := func(name string, volumes ...corev1.VolumeSource) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
		for _, v := range volumes {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: v})
		}
		return p
	}
	shared := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}}
	missing := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing"}}
	reader, idle := pod("reader", shared, missing), pod("idle", shared)
	require.False(t, r.Complete(reader), "it is not watched")
	for _, pod := range []*corev1.Pod{reader, idle, reader} {
		r.Watch(client, pod)
	}
	require.Equal(t, 2, r.Count())
	require.Eventually(t, func() bool { return r.Complete(reader) && r.Complete(idle) }, time.Minute, time.Millisecond)

	_, err = r.Secret(ctx, client, reader, "missing")
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	got, err := r.ConfigMap(ctx, client, reader, "a")
	require.NoError(t, err)
	require.Equal(t, cm.ResourceVersion, got.ResourceVersion)
	cm.Data = map[string]string{"k": "v"}
	_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "reader", <-changed)
	require.Empty(t, changed, "the other has read nothing")

	r.Release(idle.UID)
	require.Equal(t, 2, r.Count(), "the reader needs them still")
	r.Release(reader.UID)
	require.Zero(t, r.Count())

	none := (*references.References)(nil)
	got, err = none.ConfigMap(ctx, client, reader, "a")
	require.NoError(t, err, "a runtime may do without")
	require.Equal(t, "v", got.Data["k"])
}
