package volumes_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/node/environment"
	"github.com/coxswain-dev/coxswain/node/references"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/volumes"
	"github.com/coxswain-dev/coxswain/testenv"
)

// volumesTest is a pod's volumes and an API server. Volumes are set up again after each reported change.
type volumesTest struct {
	t       *testing.T
	client  kubernetes.Interface
	dir     string
	objects *references.References
	changed chan string
}

func watchVolumes(t *testing.T) *volumesTest {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	v := &volumesTest{t: t, dir: t.TempDir(), changed: make(chan string, 1000)}
	v.client = kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	var watches sync.WaitGroup
	v.objects = references.New(ctx, &watches, func(pod runtime.PodKey) { v.changed <- pod.Name })
	t.Cleanup(func() {
		cancel()
		watches.Wait()
	})
	return v
}

func podOfVolumes(name string, volumes ...corev1.VolumeSource) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: "node-0"}}
	for i, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: v})
	}
	return pod
}

func ofConfigMap(name string, optional bool) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional}}
}

// shows waits until a file of the pod's volumes has a text; "" means no file. Volumes are set up again only after a
// reported change.
func (v *volumesTest) shows(pod *corev1.Pod, file, text string) {
	v.t.Helper()
	timeout := time.After(time.Minute)
	for {
		content, _ := os.ReadFile(filepath.Join(v.dir, pod.Name, file))
		if string(content) == text {
			return
		}
		select {
		case <-v.changed:
			v.setUp(pod)
		case <-timeout:
			v.t.Fatalf("%s shows %q, want %q", file, content, text)
		}
	}
}

func (v *volumesTest) setUp(pod *corev1.Pod) {
	v.t.Helper()
	v.objects.Watch(v.client, pod)
	_, err := (&volumes.Volumes{Clock: clock.RealClock{}}).SetUp(v.t.Context(),
		&environment.Environment{Client: v.client, References: v.objects, Pod: pod}, filepath.Join(v.dir, pod.Name))
	require.NoError(v.t, err)
}

func TestVolumes_FollowTheirSources(t *testing.T) {
	t.Parallel()
	v, ctx := watchVolumes(t), t.Context()
	configMaps, secrets := v.client.CoreV1().ConfigMaps("default"), v.client.CoreV1().Secrets("default")
	cm, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm"},
		Data: map[string]string{"k": "one"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	yes := true
	pod := podOfVolumes("p", ofConfigMap("cm", false),
		corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "later"},
				Optional: &yes}}}}})
	v.setUp(pod)
	v.shows(pod, "v0/k", "one")
	require.Eventually(t, func() bool {
		return v.objects.Complete(pod)
	}, time.Minute, time.Millisecond, "nothing is to be polled")

	cm.Data["k"] = "two"
	_, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{})
	require.NoError(t, err)
	v.shows(pod, "v0/k", "two")

	_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "later"},
		StringData: map[string]string{"s": "here"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	v.shows(pod, "v1/s", "here")
	require.NoError(t, secrets.Delete(ctx, "later", metav1.DeleteOptions{}))
	v.shows(pod, "v1/s", "")

	require.Equal(t, 2, v.objects.Count())
	v.objects.Release(pod.UID)
	require.Zero(t, v.objects.Count())
}

// As in the kubelet, an immutable ConfigMap is read once for all pods that use it at the same time.
func TestVolumes_KeepImmutableSourcesWhileAPodUsesThem(t *testing.T) {
	t.Parallel()
	v, ctx := watchVolumes(t), t.Context()
	configMaps := v.client.CoreV1().ConfigMaps("default")
	yes := true
	create := func(text string) {
		_, err := configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "cm"}, Data: map[string]string{"k": text}, Immutable: &yes},
			metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create("old")
	pod, second := podOfVolumes("first", ofConfigMap("cm", false)), podOfVolumes("second", ofConfigMap("cm", false))
	v.setUp(pod)
	require.Eventually(t, func() bool { return v.objects.Complete(pod) }, time.Minute, time.Millisecond)
	require.NoError(t, configMaps.Delete(ctx, "cm", metav1.DeleteOptions{}))
	v.setUp(pod)
	v.shows(pod, "v0/k", "old")
	create("new")
	v.setUp(second)
	v.shows(second, "v0/k", "old")
	v.objects.Release(pod.UID)
	v.objects.Release(second.UID)
	v.setUp(second)
	v.shows(second, "v0/k", "new")
}

func TestVolumes_WatchesAreBounded(t *testing.T) {
	t.Parallel()
	v := watchVolumes(t)
	var greedy []corev1.VolumeSource
	for i := range 100 {
		greedy = append(greedy, ofConfigMap(fmt.Sprint("cm-", i), true))
	}
	pod := podOfVolumes("greedy", greedy...)
	v.setUp(pod)
	require.Equal(t, 64, v.objects.Count())
	require.False(t, v.objects.Complete(pod), "the others have to be polled")
}
