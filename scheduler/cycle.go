package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/internal/client/events"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// placement is the decision of a scheduling cycle.
type placement struct {
	state *framework.CycleState
	node  string
	// preBind lists the plugins that have work to do before the pod is bound.
	preBind []framework.PreBindPlugin
}

// scheduleOne makes one attempt at a pod. The scheduling cycle runs here, one pod at a time. The binding cycle, or
// the report of a failure, runs in the background.
func (s *scheduler) scheduleOne(ctx context.Context, a *attempt) {
	p := s.profileOf(a.info)
	where, err := s.schedulingCycle(ctx, p, a.info)
	s.metrics.algorithm.Observe(s.options.Clock.Since(a.began).Seconds())
	if err == nil && (len(p.permit) > 0 || len(where.preBind) > 0) {
		// The binding cycle may wait for a long time. The workers are for work that takes only a request.
		s.metrics.binding.Inc()
		s.binding.Go(func() {
			defer s.metrics.binding.Dec()
			s.bindingCycle(ctx, p, where, a)
		})
		return
	}
	s.workers <- struct{}{}
	s.metrics.binding.Inc()
	s.binding.Go(func() {
		defer func() { <-s.workers }()
		defer s.metrics.binding.Dec()
		if err == nil {
			s.bindingCycle(ctx, p, where, a)
		} else {
			s.fail(ctx, p, a, err)
		}
	})
}

// schedulingCycle chooses a node and assumes the pod there.
func (s *scheduler) schedulingCycle(ctx context.Context, p *profile, pod *framework.PodInfo) (*placement, error) {
	s.cache.mu.Lock()
	if s.cache.has(pod.Pod.UID) {
		s.cache.mu.Unlock()
		return nil, errAlreadyBound
	}
	s.snapshot.update(s.cache)
	s.cache.mu.Unlock()

	where := &placement{state: &framework.CycleState{}}
	var err error
	if where.node, err = p.place(ctx, where.state, pod, s.snapshot); err != nil {
		var u *unplaceable
		if errors.As(err, &u) && u.post != nil {
			// At once, so that the next pod does not take the room that is being made.
			s.nominator.set(pod, u.post.NominatedNodeName)
		}
		return nil, err
	}
	s.cache.mu.Lock()
	s.cache.assume(pod, where.node)
	s.cache.mu.Unlock()
	s.nominator.forget(pod.Pod.UID)
	status := p.runReserve(where.state, pod, where.node)
	if status.OK() {
		where.preBind, status = p.runPreBindPreFlight(where.state, pod, where.node)
		if status.OK() {
			return where, nil
		}
		p.runUnreserve(where.state, pod, where.node)
	}
	s.giveBack(pod)
	return nil, rejection(status, len(s.snapshot.order))
}

// giveBack removes an assumed pod from the cache. The released room may let other pods in.
func (s *scheduler) giveBack(pod *framework.PodInfo) {
	s.cache.mu.Lock()
	forgotten := s.cache.forget(pod.Pod.UID)
	s.cache.mu.Unlock()
	if forgotten {
		s.happened(framework.AssignedPod, framework.Delete, pod, nil)
	}
}

// runPreBindPreFlight returns the PreBind plugins that have work to do for the pod.
func (p *profile) runPreBindPreFlight(state *framework.CycleState, pod *framework.PodInfo,
	node string) ([]framework.PreBindPlugin, *framework.Status) {
	var busy []framework.PreBindPlugin
	for _, plugin := range p.preBind {
		switch status := plugin.PreBindPreFlight(state, pod, node); {
		case status.OK():
			busy = append(busy, plugin)
		case !status.Skipped():
			return nil, status
		}
	}
	return busy, nil
}

// rejection returns the error for a pod that was rejected for a reason other than its nodes.
func rejection(status *framework.Status, nodes int) error {
	if !status.Rejected() {
		return status.Err()
	}
	return &unplaceable{diagnosis: &framework.Diagnosis{
		Total: nodes, PreFilterMessage: strings.Join(status.Reasons(), ", "),
		Plugins: map[string]struct{}{status.Plugin(): {}},
	}}
}

// bindingCycle writes the decision to the API server. On failure the pod is removed from the cache.
func (s *scheduler) bindingCycle(ctx context.Context, p *profile, where *placement, a *attempt) {
	if err := s.bind(ctx, p, where, a.info); err != nil {
		p.runUnreserve(where.state, a.info, where.node)
		s.giveBack(a.info)
		s.fail(ctx, p, a, err)
		return
	}
	s.event(a.info.Pod, p.name, corev1.EventTypeNormal, "Scheduled", "Binding",
		fmt.Sprintf("Successfully assigned %s/%s to %s", a.info.Pod.Namespace, a.info.Pod.Name, where.node))
	s.queue.bound(a)
	s.metrics.scheduled(p.name, s.options.Clock.Now(), a)
	if len(p.postBind) == 0 {
		return
	}
	began := s.options.Clock.Now()
	for _, plugin := range p.postBind {
		plugin.PostBind(ctx, where.state, a.info, where.node)
	}
	s.metrics.point("PostBind", p, began, framework.Success)
}

func (s *scheduler) bind(ctx context.Context, p *profile, where *placement, pod *framework.PodInfo) error {
	if len(p.permit) > 0 || len(where.preBind) > 0 {
		if err := s.permitAndPreBind(ctx, p, where, pod); err != nil {
			return err
		}
	}
	began := s.options.Clock.Now()
	for _, plugin := range p.bind {
		if status := plugin.Bind(ctx, where.state, pod.Pod, where.node); !status.Skipped() {
			s.metrics.point("Bind", p, began, status.Code())
			return status.Err()
		}
	}
	s.metrics.point("Bind", p, began, framework.Skip)
	return errors.New("no bind plugin would bind the pod")
}

// permitAndPreBind may take a long time. Meanwhile a pod of higher priority can preempt this one
// (Handle.WaitingPod).
func (s *scheduler) permitAndPreBind(ctx context.Context, p *profile, where *placement, pod *framework.PodInfo) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.waiting.Store(pod.Pod.UID, cancel)
	defer s.waiting.Delete(pod.Pod.UID)
	if status := s.runPermit(ctx, p, where, pod); !status.OK() {
		return rejection(status, s.nodeCount())
	}
	if status := s.runPreBind(ctx, p, where, pod); !status.OK() {
		return rejection(status, s.nodeCount())
	}
	return context.Cause(ctx)
}

func (s *scheduler) runPermit(ctx context.Context, p *profile, where *placement,
	pod *framework.PodInfo) (status *framework.Status) {
	if len(p.permit) == 0 {
		return nil
	}
	began := s.options.Clock.Now()
	for _, plugin := range p.permit {
		if status = plugin.Permit(ctx, where.state, pod, where.node); !status.OK() {
			break
		}
	}
	s.metrics.point("Permit", p, began, status.Code())
	s.metrics.permit.WithLabelValues(status.Code().String()).Observe(s.options.Clock.Since(began).Seconds())
	return status
}

func (s *scheduler) runPreBind(ctx context.Context, p *profile, where *placement,
	pod *framework.PodInfo) (status *framework.Status) {
	began := s.options.Clock.Now()
	for _, plugin := range where.preBind {
		if status = plugin.PreBind(ctx, where.state, pod, where.node); !status.OK() {
			break
		}
	}
	s.metrics.point("PreBind", p, began, status.Code())
	return status
}

func (s *scheduler) nodeCount() int {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	return len(s.cache.order)
}

// fail reports why a pod has no node, carries out the decision of a PostFilter plugin, and returns the pod to the
// queue. In this order the condition cannot overtake the next attempt, which may succeed.
func (s *scheduler) fail(ctx context.Context, p *profile, a *attempt, err error) {
	pod := a.info.Pod
	if ctx.Err() != nil || errors.Is(err, errAlreadyBound) {
		s.queue.bound(a)
		return
	}
	var u *unplaceable
	var refusedBy map[string]struct{}
	reason, result, nominated := "SchedulerError", "error", ""
	if errors.As(err, &u) {
		reason, result = corev1.PodReasonUnschedulable, "unschedulable"
		refusedBy = u.diagnosis.Plugins
		if u.diagnosis.Total == 0 { // no plugin was called; a node may help any of them
			refusedBy = p.names()
		}
		if u.post == nil { // no plugin has made a decision
			nominated = s.nominator.of(pod.UID)
		} else {
			nominated = u.post.NominatedNodeName
		}
	} else {
		s.options.Log.Error("failed to schedule, will retry", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		s.nominator.forget(pod.UID)
	}
	s.metrics.attempt(p.name, result, s.options.Clock.Since(a.began))
	if current, getErr := s.pods.Pods(pod.Namespace).Get(pod.Name); getErr == nil && current.UID == pod.UID &&
		current.Spec.NodeName == "" {
		s.event(pod, p.name, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", err.Error())
		s.setUnscheduled(ctx, current, reason, err.Error(), nominated)
	} else {
		s.nominator.forget(pod.UID)
	}
	if u != nil && u.post != nil && u.post.Then != nil {
		if err := u.post.Then(ctx); err != nil && ctx.Err() == nil {
			s.options.Log.Error("cannot make room", "pod", pod.Namespace+"/"+pod.Name, "node", nominated, "err", err)
			s.nominator.forget(pod.UID)
			refusedBy = nil // it is retried after its back-off
		}
	}
	s.queue.failed(a, refusedBy)
}

// setUnscheduled writes the condition PodScheduled=False and the nomination, unless the pod has them already.
func (s *scheduler) setUnscheduled(ctx context.Context, pod *corev1.Pod, reason, message, nominated string) {
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(s.options.Clock.Now()),
	}
	same := false
	for _, old := range pod.Status.Conditions {
		if old.Type == corev1.PodScheduled && old.Status == condition.Status {
			same = old.Reason == reason && old.Message == message
			condition.LastTransitionTime = old.LastTransitionTime
		}
	}
	status := map[string]any{}
	if !same {
		status["conditions"] = []corev1.PodCondition{condition}
	}
	if nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = nominated
	}
	if len(status) == 0 {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err == nil {
		_, err = s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.options.Log.Warn("cannot write the pod's condition", "pod", pod.Namespace+"/"+pod.Name, "err",
			fmt.Errorf("patch status: %w", err))
	}
}

// event records an action of the scheduler with that name on a pod. It does not block and is safe for concurrent
// use.
func (s *scheduler) event(pod *corev1.Pod, component, kind, reason, action, message string) {
	s.recorder.Record(events.Event{About: events.Pod(pod), Component: component, Type: kind, Reason: reason,
		Action: action, Message: message})
}
