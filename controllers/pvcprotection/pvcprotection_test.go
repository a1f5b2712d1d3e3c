package pvcprotection

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

func claim(name string, deleted bool, finalizers ...string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		Finalizers: finalizers}}
	if deleted {
		c.DeletionTimestamp = new(metav1.Now())
	}
	return c
}

// podWith returns a pod that uses the claim "data", or that has an ephemeral volume with the claim "da-ta".
func podWith(node string, ephemeral bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-1"},
		Spec: corev1.PodSpec{NodeName: node}}
	v := corev1.Volume{Name: "v"}
	if ephemeral {
		pod.Name, v.Name = "da", "ta"
		v.Ephemeral = &corev1.EphemeralVolumeSource{}
	} else {
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	}
	pod.Spec.Volumes = []corev1.Volume{v}
	return pod
}

func protected(t *testing.T, e *fakeenv.Env, name string) bool {
	c, err := e.Client().CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return len(c.Finalizers) > 0 && c.Finalizers[len(c.Finalizers)-1] == finalizer
}

func TestPVCProtection_KeepsAClaimWhileAPodUsesIt(t *testing.T) {
	t.Parallel()
	theirs := claim("da-ta", true, finalizer)
	theirs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(podWith("n", true),
		corev1.SchemeGroupVersion.WithKind("Pod"))}
	for name, c := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		pod   *corev1.Pod
		want  bool
	}{
		"new":                             {claim("data", false), podWith("n", false), true},
		"deleted, used":                   {claim("data", true, finalizer), podWith("n", false), true},
		"deleted, the pod has no Node":    {claim("data", true, finalizer), podWith("", false), false},
		"deleted, same name as ephemeral": {claim("da-ta", true, finalizer), podWith("n", true), false},
		"deleted, owned by the pod":       {theirs, podWith("n", true), true},
		"deleted, another is used":        {claim("other", true, finalizer), podWith("n", false), false},
	} {
		e := fakeenv.New(t, c.claim, c.pod)
		e.Start(New)
		require.Equal(t, c.want, protected(t, e, c.claim.Name), name)
	}
}

// TestPVCProtection_ReadsPodsFromTheServer has a cache without the pod that uses the claim.
func TestPVCProtection_ReadsPodsFromTheServer(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, claim("data", true, "example.com/other", finalizer))
	lists := 0
	e.Fake.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "" { // a list of the informer
			return false, nil, nil
		}
		lists++
		return true, &corev1.PodList{Items: []corev1.Pod{*podWith("n", false)}}, nil
	})
	e.Start(New)
	require.Equal(t, 1, lists)
	require.True(t, protected(t, e, "data"))
}

func TestPVCProtection_ReleasesAClaimAfterItsPodWasDeleted(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, claim("data", true, finalizer), podWith("n", false))
	e.Start(New)
	require.True(t, protected(t, e, "data"))
	require.NoError(t, e.Client().CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	e.Eventually("it is released", func() bool { return !protected(t, e, "data") })
}
