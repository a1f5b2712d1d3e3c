package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/loglines"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

func testComponent(log *loglines.Log) Component {
	return Component{Log: log, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-scheduler", Namespace: "default"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-scheduler", Image: "coxswain:test"}}},
	}}
}

// logOf returns the log of a pod's container, as the agent's endpoint reads it.
func (c *cluster) logOf(pod *corev1.Pod) string {
	r, err := c.agent.runtimeOf(pod).OpenLog(pod, &runtime.LogRun{Ended: func() (time.Time, bool) {
		return time.Time{}, false
	}})
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, r.Close()) }()
	var text strings.Builder
	for {
		record, err := r.Next()
		if err != nil {
			return text.String()
		}
		fmt.Fprintf(&text, "%s\n", record.Text)
	}
}

func TestComponents_AreStaticPodsOfTheFirstNode(t *testing.T) {
	t.Parallel()
	log := &loglines.Log{}
	fmt.Fprintln(log, "leading")
	c := startCluster(t, Options{Count: 2, Components: []Component{testComponent(log)}})
	c.eventually("it is ready", func() bool { return ready(c.pod("kube-scheduler-node-0")) })
	require.Empty(t, c.pod("kube-scheduler-node-1").Name)
	pod := c.pod("kube-scheduler-node-0")
	require.Equal(t, "file", pod.Annotations[annotationSource])
	require.Equal(t, "leading\n", c.logOf(pod))
	_, err := c.agent.runtimeOf(pod).Usage(t.Context(), pod, &pod.Spec.Containers[0], time.Time{}, time.Time{})
	require.Error(t, err)

	// A deleted one returns without a step of the clock.
	before := pod.UID
	require.NoError(t, c.CoreV1().Pods("default").Delete(t.Context(), pod.Name, *metav1.NewDeleteOptions(0)))
	c.eventually("it is back", func() bool {
		pod = c.pod("kube-scheduler-node-0")
		return pod.UID != before && ready(pod)
	})
}

func TestComponents_GiveTheirLogToNoOtherPod(t *testing.T) {
	t.Parallel()
	log := &loglines.Log{}
	fmt.Fprintln(log, "secret")
	c := startCluster(t, Options{Count: 1, Components: []Component{testComponent(log)}})
	c.create(boundPod("thief", "node-0", annotationComponent, "kube-scheduler"))
	c.eventually("it is ready", func() bool { return ready(c.pod("thief")) })
	require.NotContains(t, c.logOf(c.pod("thief")), "secret")
}

func TestComponents_StartAgainWithTheProcess(t *testing.T) {
	t.Parallel()
	o := Options{Count: 1, DataDir: t.TempDir(), Components: []Component{testComponent(&loglines.Log{})}}
	c := startCluster(t, o)
	c.eventually("it is ready", func() bool { return ready(c.pod("kube-scheduler-node-0")) })
	first := c.pod("kube-scheduler-node-0").UID
	c.stop()
	c.start(o)
	c.later(time.Second, "it has been restarted", func() bool {
		pod := c.pod("kube-scheduler-node-0")
		return ready(pod) && pod.UID == first && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
}
