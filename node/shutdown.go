package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// The kubelet's words for a node that shuts down, and for its pods.
const (
	shutdownReason  = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
)

// shutDown ends the pods of all nodes as a machine's shutdown does: the Nodes are not ready and take no more
// pods, pods end in what is left of ShutdownGracePeriod for them, those of critical priority after the
// others. It returns when all have ended, and their status is written, or time is up.
//
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#graceful-node-shutdown
func (a *agent) shutDown(ctx context.Context) {
	a.Log.Info("shutting down", "within", a.ShutdownGracePeriod)
	a.shuttingDown.Store(true)
	for name := range a.nodes {
		a.NodeEvent(name, corev1.EventTypeNormal, "NodeNotReady", "Node "+name+" status is now: NodeNotReady")
		a.nodeQueue.Add(nodeTask{name, syncNode})
	}
	critical := min(a.ShutdownGracePeriodCriticalPods, a.ShutdownGracePeriod)
	a.endPods(ctx, a.ShutdownGracePeriod-critical, func(pod *corev1.Pod) bool {
		return priorityOf(pod) < systemCriticalPriority
	})
	a.endPods(ctx, critical, func(pod *corev1.Pod) bool { return priorityOf(pod) >= systemCriticalPriority })
}

// shutdownPoll is how often is looked whether pods have ended.
const shutdownPoll = 100 * time.Millisecond

// endPods ends some pods, and waits until that is done and written or the time is over. What a runtime keeps
// for them goes as well.
func (a *agent) endPods(ctx context.Context, within time.Duration, which func(*corev1.Pod) bool) {
	now := a.Clock.Now()
	var ending []*corev1.Pod
	for _, n := range a.nodes {
		for _, pod := range a.podsOf(n) {
			if phaseEnded(pod.Status.Phase) || !which(pod) {
				continue
			}
			a.terminate(pod, shutdownReason, shutdownMessage, min(within, runtime.GracePeriod(pod)), now)
			ending = append(ending, pod)
		}
	}
	end := a.Clock.NewTimer(within)
	defer end.Stop()
	ticker := a.Clock.NewTicker(shutdownPoll)
	defer ticker.Stop()
	for {
		left := ending[:0]
		for _, pod := range ending {
			if !a.endWritten(pod.UID) {
				left = append(left, pod)
			} else if err := a.tearDown(ctx, pod); err != nil {
				a.Log.Warn("cannot tear down a pod at shutdown", "err", err)
			}
		}
		if ending = left; len(ending) == 0 {
			return
		}
		select {
		case <-ticker.C():
		case <-end.C():
			a.Log.Warn("pods have not ended before the node's shutdown", "pods", len(ending))
			return
		}
	}
}

// endWritten reports that nothing runs of a pod any more and that the API server knows.
func (a *agent) endWritten(pod types.UID) bool {
	p := a.hostedPod(pod)
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Stopped() && p.sent != nil && phaseEnded(p.sent.Phase)
}
