package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/testenv"
)

// programs is an agent that runs programs of this machine, with an otherwise empty API server.
type programs struct {
	kubernetes.Interface
	t   *testing.T
	dir string
}

func startPrograms(t *testing.T, o node.Options) *programs {
	t.Helper()
	if err := sandbox.Supported(); err != nil {
		t.Skipf("SKIPPED: containers as processes take root, namespaces and cgroups, and are not tested here: %v", err)
	}
	config := testenv.Start(t, testenv.APIServerOnly())
	p := &programs{kubernetes.NewForConfigOrDie(config), t, t.TempDir()}
	o.Runtime, o.DataDir, o.Port = node.Process, p.dir, -1
	o.Eviction.Hard = []string{} // independent of the memory use of this machine
	startNodes(t, config, o)
	t.Cleanup(func() { // before the agent ends, so that it removes the pods
		ctx, pods := context.Background(), p.CoreV1().Pods("default")
		list, err := pods.List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for i := range list.Items {
			now := int64(0)
			_ = pods.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		p.eventually("nothing is left of the pods", func() bool {
			left, err := os.ReadDir(filepath.Join(p.dir, "pods"))
			return err == nil && len(left) == 0
		})
	})
	return p
}

func (p *programs) eventually(what string, holds func() bool) {
	p.t.Helper()
	if assert.Eventually(p.t, holds, time.Minute, 10*time.Millisecond, what) {
		return
	}
	list, err := p.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	require.NoError(p.t, err)
	for i := range list.Items {
		p.t.Logf("%s: %+v", list.Items[i].Name, list.Items[i].Status)
	}
	p.t.FailNow()
}

// run creates a pod with one container, "c", that runs a script on a node.
func (p *programs) run(name, node, script string, change ...func(*corev1.Pod)) *corev1.Pod {
	p.t.Helper()
	no, grace := false, int64(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{Name: "c", Image: "any", Command: []string{"sh", "-c", script}}},
	}}
	for _, f := range change {
		f(pod)
	}
	pod, err := p.CoreV1().Pods("default").Create(p.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(p.t, err)
	return pod
}

func (p *programs) pod(name string) *corev1.Pod {
	p.t.Helper()
	pod, err := p.CoreV1().Pods("default").Get(p.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &corev1.Pod{}
	}
	require.NoError(p.t, err)
	return pod
}

// log returns the output of the container's first run.
func (p *programs) log(pod *corev1.Pod) string {
	text, _ := os.ReadFile(sandbox.LogPath(filepath.Join(p.dir, "pods", string(pod.UID)), "c", 0))
	return string(text)
}

func (p *programs) logs(pod *corev1.Pod, text string) {
	p.t.Helper()
	p.eventually("the log has "+text, func() bool { return strings.Contains(p.log(pod), text) })
}

func TestPrograms_SeeConfigMapsAndLabelsChange(t *testing.T) {
	t.Parallel()
	p, ctx := startPrograms(t, node.Options{}), t.Context()
	cm, err := p.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cm"}, Data: map[string]string{"k": "one"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod := p.run("p", "node-0", `while :; do echo "$(cat /cm/k) $(cat /self/labels)"; sleep 0.05; done`,
		func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"tier": "old"}
			pod.Spec.Volumes = []corev1.Volume{
				{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}},
				{Name: "self", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
					{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['tier']"}}}}}},
			}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "cm", MountPath: "/cm"},
				{Name: "self", MountPath: "/self"}}
		})
	p.logs(pod, "one old")
	cm.Data["k"] = "two"
	_, err = p.CoreV1().ConfigMaps("default").Update(ctx, cm, metav1.UpdateOptions{})
	require.NoError(t, err)
	p.logs(pod, "two old")
	_, err = p.CoreV1().Pods("default").Patch(ctx, "p", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"tier":"new"}}}`), metav1.PatchOptions{}) // the agent writes the pod, too
	require.NoError(t, err)
	p.logs(pod, "two new")
}
