package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Reason and message of pods during a node's shutdown, as in the kubelet.
const (
	shutdownReason  = "Terminated"
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
)

// shutDown ends the pods of all nodes like a machine's shutdown. The Nodes become not ready and accept no more pods.
// Pods end within ShutdownGracePeriod, those of critical priority after the others. It returns when all pods have ended
// and their status is written, or when the time is over.
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

// shutdownPoll is the interval of checks for pods that have ended.
const shutdownPoll = 100 * time.Millisecond

// endPods ends the pods that selected returns true for, and waits until they have ended and their status is written, or
// the time is over. It also tears down their sandboxes.
func (a *agent) endPods(ctx context.Context, within time.Duration, selected func(*corev1.Pod) bool) {
	now := a.Clock.Now()
	var ending []*corev1.Pod
	for _, n := range a.nodes {
		for _, pod := range a.podsOf(n) {
			if phaseEnded(pod.Status.Phase) || !selected(pod) {
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

// endWritten reports whether all containers of a pod have stopped and the API server has the pod's last status.
func (a *agent) endWritten(pod types.UID) bool {
	p := a.hostedPod(pod)
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Stopped() && p.sent != nil && phaseEnded(p.sent.Phase)
}
