package references

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

func podWith(name string, volumes ...corev1.VolumeSource) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: "node"}}
	for i, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i), VolumeSource: v})
	}
	return pod
}

func configMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func secret(name string) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
}

func TestReferencesOf_ReturnsEachVolumeSourceOnce(t *testing.T) {
	t.Parallel()
	projected := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "b"}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{}},
	}}}
	key := func(kind referenceKind, name string) referenceKey { return referenceKey{"node", "default", name, kind} }
	for name, c := range map[string]struct {
		volumes []corev1.VolumeSource
		want    []referenceKey
	}{
		"none":         {},
		"others":       {[]corev1.VolumeSource{{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, nil},
		"a ConfigMap":  {[]corev1.VolumeSource{configMap("a")}, []referenceKey{key(configMaps, "a")}},
		"a Secret":     {[]corev1.VolumeSource{secret("a")}, []referenceKey{key(secrets, "a")}},
		"without name": {[]corev1.VolumeSource{configMap(""), secret("")}, nil},
		"projected":    {[]corev1.VolumeSource{projected}, []referenceKey{key(configMaps, "a"), key(secrets, "b")}},
		"twice": {[]corev1.VolumeSource{configMap("a"), projected, secret("a")},
			[]referenceKey{key(configMaps, "a"), key(secrets, "b"), key(secrets, "a")}},
	} {
		require.Equal(t, c.want, referencesOf(podWith("p", c.volumes...)), name)
	}
}

// calls are References that no watch feeds, and the pods for which they have called changed.
func calls() (*References, *[]string) {
	var called []string
	r := New(context.Background(), &sync.WaitGroup{}, func(pod runtime.PodKey) { called = append(called, pod.Name) })
	return r, &called
}

// TestReferences_CallChangedForStaleReads shows versions to a pod's reference and to the pod, in
// any order: what is read may be newer than what the watch has seen, and then only the watch is late.
func TestReferences_CallChangedForStaleReads(t *testing.T) {
	t.Parallel()
	pod := podWith("p", configMap("a"))
	key := referencesOf(pod)[0]
	for name, c := range map[string]struct {
		steps []string // "read" or "seen", and the version; no version for no object
		calls int
	}{
		"seen before it is read":      {[]string{"seen 1", "read 1"}, 0},
		"read before it is seen":      {[]string{"read 1", "seen 1"}, 0},
		"changed":                     {[]string{"read 1", "seen 2"}, 1},
		"changed, and read anew":      {[]string{"read 1", "seen 2", "read 2"}, 1},
		"changed, but not yet read":   {[]string{"seen 1", "seen 2"}, 0},
		"read from before the watch":  {[]string{"seen 2", "read 1"}, 1},
		"read from beyond the watch":  {[]string{"seen 1", "read 2", "seen 2"}, 0},
		"created":                     {[]string{"seen ", "read ", "seen 1"}, 1},
		"deleted":                     {[]string{"seen 1", "read 1", "seen "}, 1},
		"missing, and read as such":   {[]string{"seen ", "read "}, 0},
		"created while it is read":    {[]string{"read ", "seen 1", "read 1"}, 1},
		"nothing known when it reads": {[]string{"read 1"}, 0},
	} {
		r, called := calls()
		ref := &reference{cancel: func() {}, pods: map[runtime.PodKey]*readVersion{runtime.KeyOf(pod): {}}}
		r.byKey[key], r.byPod[pod.UID] = ref, []referenceKey{key}
		for _, step := range c.steps {
			version := step[len("read "):]
			if step[:len("read")] == "read" {
				r.read(key, runtime.KeyOf(pod), version)
				continue
			}
			var seen any
			if version != "" {
				seen = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: version}}
			}
			require.NoError(t, observer{r, ref}.observe(seen))
		}
		require.Len(t, *called, c.calls, name)
	}
}

func TestRelease_EndsWatchesAndCalls(t *testing.T) {
	t.Parallel()
	pod := podWith("p", configMap("a"))
	key := referencesOf(pod)[0]
	r, called := calls()
	ended := false
	ref := &reference{cancel: func() { ended = true }, pods: map[runtime.PodKey]*readVersion{runtime.KeyOf(pod): {}}}
	r.byKey[key], r.byPod[pod.UID] = ref, []referenceKey{key}
	r.Release(pod.UID)
	require.True(t, ended)
	require.Zero(t, r.Count())
	r.read(key, runtime.KeyOf(pod), "1")
	require.NoError(t, observer{r, ref}.observe(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}))
	require.Empty(t, *called)
	r.Release(pod.UID)
}
