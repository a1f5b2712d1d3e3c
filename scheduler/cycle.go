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
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// scheduleOne makes one attempt at a pod. The scheduling cycle happens here, one pod at a time. The binding
// cycle, or telling the user why there is none, happens in the background.
func (s *scheduler) scheduleOne(ctx context.Context, a *attempt) {
	p := s.profileOf(a.info)
	state := &framework.CycleState{}
	node, err := s.schedulingCycle(ctx, p, state, a.info)
	s.inBackground(func() {
		if err == nil {
			err = s.bindingCycle(ctx, p, state, a, node)
		}
		if err != nil {
			s.fail(ctx, p, a, err)
		}
	})
}

// inBackground runs f in a goroutine when one of the bounded number is free.
func (s *scheduler) inBackground(f func()) {
	s.workers <- struct{}{}
	s.binding.Go(func() {
		defer func() { <-s.workers }()
		f()
	})
}

// schedulingCycle chooses a node and assumes the pod there.
func (s *scheduler) schedulingCycle(ctx context.Context, p *profile, state *framework.CycleState, pod *framework.PodInfo) (string, error) {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if s.cache.has(pod.Pod.UID) {
		return "", errAlreadyBound
	}
	node, err := p.place(ctx, state, pod, s.cache)
	if err != nil {
		return "", err
	}
	s.cache.assume(pod, node)
	if status := p.runReserve(state, pod, node); !status.OK() {
		s.cache.forget(pod.Pod.UID)
		return "", rejection(status, len(s.cache.order))
	}
	return node, nil
}

// errAlreadyBound: the informer was faster than the queue. There is nothing to tell anyone.
var errAlreadyBound = errors.New("already bound")

// rejection is the error for a refusal that is not about a node.
func rejection(status *framework.Status, nodes int) error {
	if !status.Rejected() {
		return status.Err()
	}
	return &unplaceable{&framework.Diagnosis{
		Total: nodes, PreFilterMessage: strings.Join(status.Reasons(), ", "),
		Plugins: map[string]struct{}{status.Plugin(): {}},
	}}
}

// bindingCycle makes the choice true in the API server. On failure the pod is forgotten, which may let
// others in.
func (s *scheduler) bindingCycle(ctx context.Context, p *profile, state *framework.CycleState, a *attempt, node string) error {
	err := s.bind(ctx, p, state, a.info, node)
	if err != nil {
		s.cache.mu.Lock()
		p.runUnreserve(state, a.info, node)
		forgotten := s.cache.forget(a.info.Pod.UID)
		s.cache.mu.Unlock()
		if forgotten {
			s.queue.happened(framework.AssignedPodDeleted, nil)
		}
		return err
	}
	s.queue.bound(a)
	s.metrics.observe(p.name, "scheduled", s.Clock.Since(a.began))
	s.recorder.event(a.info.Pod, corev1.EventTypeNormal, "Scheduled",
		fmt.Sprintf("Successfully assigned %s/%s to %s", a.info.Pod.Namespace, a.info.Pod.Name, node))
	return nil
}

func (s *scheduler) bind(ctx context.Context, p *profile, state *framework.CycleState, pod *framework.PodInfo, node string) error {
	for _, plugin := range p.permit {
		if status := plugin.Permit(ctx, state, pod, node); !status.OK() {
			return rejection(status, 0)
		}
	}
	for _, plugin := range p.bind {
		if status := plugin.Bind(ctx, state, pod.Pod, node); !status.Skipped() {
			return status.Err()
		}
	}
	return errors.New("no bind plugin would bind the pod")
}

// defaultBinder binds through the pod's binding subresource.
type defaultBinder struct{ client kubernetes.Interface }

// Name implements framework.Plugin.
func (defaultBinder) Name() string { return "DefaultBinder" }

// Bind implements framework.BindPlugin. The UID keeps it from binding a later pod of the same name.
func (b defaultBinder) Bind(ctx context.Context, _ *framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	err := b.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return framework.AsError(b.Name(), err)
	}
	return nil
}

// fail tells the user why a pod has no node, then gives the pod back to the queue. In this order the
// condition cannot overtake the next attempt, which may well succeed.
func (s *scheduler) fail(ctx context.Context, p *profile, a *attempt, err error) {
	pod := a.info.Pod
	if ctx.Err() != nil || errors.Is(err, errAlreadyBound) {
		s.queue.bound(a)
		return
	}
	var unplaceable *unplaceable
	var refusedBy map[string]struct{}
	reason, result := "SchedulerError", "error"
	if errors.As(err, &unplaceable) {
		reason, result = corev1.PodReasonUnschedulable, "unschedulable"
		refusedBy = unplaceable.diagnosis.Plugins
		if unplaceable.diagnosis.Total == 0 { // no plugin was asked; any may be glad of a node
			refusedBy = p.names()
		}
	} else {
		s.Log.Error("scheduling failed, will retry", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
	s.metrics.observe(p.name, result, s.Clock.Since(a.began))
	if current, getErr := s.pods.Pods(pod.Namespace).Get(pod.Name); getErr == nil && current.UID == pod.UID && current.Spec.NodeName == "" {
		s.recorder.event(pod, corev1.EventTypeWarning, "FailedScheduling", err.Error())
		s.setUnscheduled(ctx, current, reason, err.Error())
	}
	s.queue.failed(a, refusedBy)
}

// setUnscheduled writes the condition PodScheduled=False where it does not say so already.
func (s *scheduler) setUnscheduled(ctx context.Context, pod *corev1.Pod, reason, message string) {
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(s.Clock.Now()),
	}
	for _, old := range pod.Status.Conditions {
		if old.Type != corev1.PodScheduled || old.Status != condition.Status {
			continue
		}
		if old.Reason == reason && old.Message == message {
			return
		}
		condition.LastTransitionTime = old.LastTransitionTime
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err == nil {
		_, err = s.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.Log.Warn("cannot write the pod's condition", "pod", pod.Namespace+"/"+pod.Name, "err", fmt.Errorf("patch status: %w", err))
	}
}
