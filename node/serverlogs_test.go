package node

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

// TestContainerLogs_FollowTheEndOfAPod ends and forgets a pod while a request for its log is authorized. The pod that
// the request found before has no status yet.
func TestContainerLogs_FollowTheEndOfAPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	forgotten := func() bool {
		c.agent.mu.Lock()
		defer c.agent.mu.Unlock()
		return phaseEnded(c.pod("p").Status.Phase) && c.agent.pods["uid-p"] == nil
	}
	writing, write := make(chan struct{}, 10), make(chan struct{})
	c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		writing <- struct{}{}
		<-write
		return false, nil, nil
	})
	c.start(Options{})
	pod := boundPod("p", "node-0", simulated.AnnotationLog, "done\n", simulated.AnnotationRunFor, "1s")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	c.create(pod)
	<-writing

	e := &endpoint{agent: c.agent}
	found := e.findPod("default", "p")
	require.Empty(t, found.Status.ContainerStatuses)
	close(write)
	c.later(time.Second, "the pod ends", forgotten)

	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/containerLogs/default/p/c", nil)
	request.SetPathValue("container", "c")
	answer := httptest.NewRecorder()
	e.containerLogs(answer, request, found)
	require.Equal(t, http.StatusOK, answer.Code, "%s", answer.Body)
	require.Equal(t, "done\n", answer.Body.String())
}

// TestContainerStatus_IsAheadOfTheWrittenStatus drops the API server's responses to the status: clients may see that
// the container runs before the agent knows that they do.
func TestContainerStatus_IsAheadOfTheWrittenStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return true, nil, context.DeadlineExceeded
	})
	c.start(Options{})
	c.eventually("the Node is there", func() bool { return c.agent.missing.Load() == 0 })
	pod := boundPod("p", "node-0")
	c.create(pod)
	c.eventually("the container runs", func() bool {
		run, err := c.agent.logRun(pod, "c", false)
		if err != nil {
			return false
		}
		_, ended := run.Ended()
		return !ended
	})
}
