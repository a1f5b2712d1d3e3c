package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/network/cni"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestFindPod_ReturnsPodNamedByRuntime(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.APIServerOnly())
	admin := kubernetes.NewForConfigOrDie(config)
	_, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	create := func(name string, annotations map[string]string) *corev1.Pod {
		pod, err := admin.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
			Spec:       corev1.PodSpec{NodeName: "here", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		return pod
	}
	web := create("web", nil)
	create("other", nil)
	static := create("static", map[string]string{corev1.MirrorPodAnnotationKey: "static-uid"})
	client := kubernetes.NewForConfigOrDie(testenv.User(t, config, "coxswain:network"))
	for _, c := range []struct {
		node string
		pod  cni.Pod
		want *corev1.Pod // nil for none
	}{
		{"here", cni.Pod{Namespace: "default", Name: "web", UID: string(web.UID)}, web},
		{"here", cni.Pod{Namespace: "default", Name: "web"}, web},
		{"here", cni.Pod{Namespace: "default", Name: "static", UID: "static-uid"}, static},
		{"here", cni.Pod{Namespace: "default", Name: "web", UID: "of-an-earlier-one"}, nil},
		{"here", cni.Pod{Namespace: "default", Name: "gone"}, nil},
		{"here", cni.Pod{Namespace: "elsewhere", Name: "web"}, nil},
		{"there", cni.Pod{Namespace: "default", Name: "web", UID: string(web.UID)}, nil},
	} {
		found, err := findPod(t.Context(), client, c.node, c.pod)
		if c.want == nil {
			require.ErrorContains(t, err, "the API server has no pod "+c.pod.Namespace+"/"+c.pod.Name, "%+v", c)
			continue
		}
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.want.UID, found.UID, "%+v", c)
	}
}
