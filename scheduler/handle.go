package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// handle is the framework.Handle of one profile's plugins.
type handle struct {
	*scheduler
	profile *profile
}

var _ framework.Handle = (*handle)(nil)

// Client implements framework.Handle.
func (h *handle) Client() kubernetes.Interface { return h.client }

// Informers implements framework.Handle.
func (h *handle) Informers() informers.SharedInformerFactory { return h.informers }

// Clock implements framework.Handle.
func (h *handle) Clock() clock.WithTicker { return h.options.Clock }

// Log implements framework.Handle.
func (h *handle) Log() *slog.Logger { return h.options.Log }

// Event implements framework.Handle.
func (h *handle) Event(pod *corev1.Pod, kind, reason, action, message string) {
	h.event(pod, h.profile.name, kind, reason, action, message)
}

// FilterWithNominated implements framework.Handle.
func (h *handle) FilterWithNominated(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	return h.profile.filterWithNominated(state, pod, node)
}

// AddPod implements framework.Handle.
func (h *handle) AddPod(state *framework.CycleState, pod, added *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	return h.profile.addPod(state, pod, added, node)
}

// RemovePod implements framework.Handle.
func (h *handle) RemovePod(state *framework.CycleState, pod, removed *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	return h.profile.removePod(state, pod, removed, node)
}

// NominatedPods implements framework.Handle.
func (h *handle) NominatedPods(node string) []*framework.PodInfo { return h.nominator.on(node) }

// WaitingPod implements framework.Handle.
func (h *handle) WaitingPod(pod *corev1.Pod) (reject func(string), waiting bool) {
	cancel, ok := h.waiting.Load(pod.UID)
	if !ok {
		return nil, false
	}
	return func(reason string) { cancel.(context.CancelCauseFunc)(errors.New(reason)) }, true
}

// Parallel implements framework.Handle.
func (h *handle) Parallel(n int, f func(i int)) {
	if n < 8 { // starting goroutines would take longer
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(h.profile.parallel, n) {
		workers.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				f(int(i - 1))
			}
		})
	}
	workers.Wait()
}
