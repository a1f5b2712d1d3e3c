package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// hostedPod is a pod that the agent has taken on: its state machine, and the containers that the runtime runs for it.
//
// One worker at a time works on a pod: it carries out the actions of the state machine and writes the status. Others
// look at the pod meanwhile: requests for logs and streams, eviction, the node's shutdown, and pulls that end. So mu
// is never held while anything waits for the runtime or for the API server.
type hostedPod struct {
	stale atomic.Bool // volumes and files are out of date: SetUp is due as soon as RefreshPause allows

	mu      sync.Mutex // guards the following fields
	state   *podstate.Pod
	running []runningContainer
	pulls   map[string]*pull   // under way, by the names of their containers
	cancel  context.CancelFunc // ends the runtime's call that the worker waits for; nil if there is none
	halted  bool               // the pod will end: it waits for no call that would start a container

	// The last status that was written or read, and the pod's resourceVersion with it. Only the worker writes these,
	// with mu held.
	sent        *corev1.PodStatus
	sentVersion string
	written     bool // sent is complete: later writes only need the differences

	// The worker's own.
	setUp     bool      // the runtime has set up the pod
	setUpAt   time.Time // when SetUp is due again; zero is never
	renewal   time.Time // when SetUp is due again on the wall clock; zero is never
	lastSetUp time.Time
	deleted   bool // the API server has accepted the DELETE
}

// runningContainer is a container that the runtime runs.
type runningContainer struct {
	name string
	runtime.Container
}

// hostedPod returns a pod that the agent has taken on, or nil.
func (a *agent) hostedPod(uid types.UID) *hostedPod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[uid]
}

// call returns a context for a call of the runtime that prepares or starts containers. It ends when the pod has to
// end, or after a timeout. The worker calls done after the call.
func (p *hostedPod) call(ctx context.Context, timeout time.Duration) (_ context.Context, done func()) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cancel = cancel; p.halted {
		cancel()
	}
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cancel = nil
	}
}

// halt ends pulls and other calls of the runtime, since the pod will end. mu is held.
func (p *hostedPod) halt() {
	p.halted = true
	p.state.Halt()
	if p.cancel != nil {
		p.cancel()
	}
	for _, pull := range p.pulls {
		pull.cancel()
	}
}

// halt ends the calls of the runtime that a pod waits for, as soon as it is known that the pod ends: its worker may
// be one of those that wait.
func (a *agent) halt(pod types.UID) {
	if p := a.hostedPod(pod); p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.halt()
	}
}

// goOn takes halt back if the cache shows the pod alive again: a store that was reset to a snapshot may delete a pod
// and create it with the same UID. The cache is read with mu held, since it shows the end of a pod before halt is
// called.
func (p *hostedPod) goOn(latest func() (*corev1.Pod, error)) {
	if !p.halted || p.state.Stopping() {
		return
	}
	pod, err := latest()
	if err != nil || pod.UID != p.state.Pod().UID || pod.DeletionTimestamp != nil || phaseEnded(pod.Status.Phase) {
		return
	}
	p.halted = false
	p.state.Continue()
}

// observe passes the states of the running containers to the state machine. mu is held.
func (p *hostedPod) observe(now time.Time) {
	p.running = slices.DeleteFunc(p.running, func(c runningContainer) bool {
		state := c.State(now)
		p.state.Observe(c.name, state)
		return state.Exit != nil
	})
}

// container returns a container that runs, or nil.
func (p *hostedPod) container(name string) runtime.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.running {
		if c.name == name {
			return c.Container
		}
	}
	return nil
}

// previous returns the conditions as last written, which the cache may not show yet.
func (p *hostedPod) previous() []corev1.PodCondition {
	if p.sent == nil {
		return nil
	}
	return p.sent.Conditions
}

// overwritten reports whether another client has changed a part of the status that is the agent's. The node
// controller does, when heartbeats are missing: the pods of the node are not ready then, and only the agent reports
// when they are again. The kubelet compares in the same way (needsReconcile of its status manager).
func (p *hostedPod) overwritten() bool {
	pod := p.state.Pod()
	if p.sent == nil || phaseEnded(pod.Status.Phase) {
		return false // a pod whose end was reported does not live again
	}
	if order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, p.sentVersion); err != nil ||
		order <= 0 {
		return false // the pod as last seen is no newer than the last write
	}
	for _, t := range podstate.OwnConditions {
		seen, sent := podstate.Condition(pod.Status.Conditions, t), podstate.Condition(p.sent.Conditions, t)
		if (seen == nil) != (sent == nil) || seen != nil && seen.Status != sent.Status {
			return true
		}
	}
	return pod.Status.Phase != p.sent.Phase
}
