package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// podKey is a pod of one life: a later pod of the same name is another.
type podKey struct {
	node, namespace, name string
	uid                   types.UID
}

func keyOf(pod *corev1.Pod) podKey {
	return podKey{pod.Spec.NodeName, pod.Namespace, pod.Name, pod.UID}
}

// syncPod brings a pod as far as it can come now. The work queue sees to it that no pod is worked on twice at once.
func (a *agent) syncPod(ctx context.Context, key podKey) error {
	pod, err := a.nodes[key.node].pods.Pods(key.namespace).Get(key.name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || pod.UID != key.uid || pod.Spec.NodeName != key.node {
		a.dropPod(key)
		return nil
	}
	if pod.DeletionTimestamp == nil && phaseEnded(pod.Status.Phase) {
		a.dropPod(key) // nothing more will happen, and its address is free
		return nil
	}
	now := a.Clock.Now()
	p, err := a.podState(pod, now)
	if err != nil {
		return err
	}
	p.pod = pod
	if pod.DeletionTimestamp != nil && !p.stopping {
		p.stop(now, gracePeriod(pod))
	}
	next := p.step(now)
	if err := a.writeStatus(ctx, p, now); err != nil {
		return err
	}
	a.record(p)
	if pod.DeletionTimestamp != nil && p.stopped() {
		return a.finishDeletion(ctx, p)
	}
	if !next.IsZero() {
		a.podQueue.AddAfter(key, max(0, next.Sub(now)))
	}
	return nil
}

// podState is what is known of a pod, made where nothing is: from its status if an earlier agent ran it.
func (a *agent) podState(pod *corev1.Pod, now time.Time) (*podState, error) {
	a.mu.Lock()
	p := a.states[pod.UID]
	a.mu.Unlock()
	if p != nil {
		return p, nil
	}
	n := a.nodes[pod.Spec.NodeName]
	p = newPodState(pod, a.runtime, a.Address, now)
	switch {
	case pod.Status.StartTime != nil:
		p.resume()
	case pod.DeletionTimestamp != nil: // never came to life: it needs no address
	case pod.Spec.HostNetwork:
		p.ip = a.Address
	}
	if p.ip == "" && pod.DeletionTimestamp == nil {
		ip, err := n.takeAddress(pod.UID)
		if err != nil {
			if !errors.Is(err, errNoCIDR) {
				a.events.event(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
			}
			return nil, fmt.Errorf("address for pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		p.ip = ip
	}
	a.mu.Lock()
	a.states[pod.UID] = p
	a.mu.Unlock()
	return p, nil
}

// dropPod forgets a pod that is gone or has ended.
func (a *agent) dropPod(key podKey) {
	a.mu.Lock()
	p := a.states[key.uid]
	delete(a.states, key.uid)
	a.mu.Unlock()
	if p == nil {
		return
	}
	p.stop(a.Clock.Now(), 0) // deleted by force, it had no chance to end
	if n := a.nodes[p.pod.Spec.NodeName]; n != nil {
		n.releaseAddress(key.uid)
	}
}

// writeStatus writes the status if it says something new.
func (a *agent) writeStatus(ctx context.Context, p *podState, now time.Time) error {
	status := p.status(now)
	if p.sent != nil && equality.Semantic.DeepEqual(p.sent, status) {
		return nil
	}
	patch, err := statusPatch(p, status)
	if err != nil {
		return fmt.Errorf("status patch: %w", err)
	}
	_, err = a.nodes[p.pod.Spec.NodeName].client.CoreV1().Pods(p.pod.Namespace).Patch(ctx, p.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil // the informer will say so
	}
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
	}
	p.sent, p.written = status, true
	return nil
}

// conditionOrder is the directive of a strategic merge patch that puts conditions into an order.
type conditionOrder struct {
	Type corev1.PodConditionType `json:"type"`
}

// statusPatch is a strategic merge patch. The first one of a pod says everything; later ones what is
// different, so that what has ended to be so goes away. The UID makes it miss a later pod of the same name.
func statusPatch(p *podState, status *corev1.PodStatus) ([]byte, error) {
	var change any
	if !p.written {
		order := make([]conditionOrder, len(status.Conditions))
		for i := range status.Conditions {
			order[i].Type = status.Conditions[i].Type
		}
		change = struct {
			*corev1.PodStatus
			Order []conditionOrder `json:"$setElementOrder/conditions"`
		}{status, order}
	} else {
		before, err := json.Marshal(p.sent)
		if err != nil {
			return nil, err
		}
		after, err := json.Marshal(status)
		if err != nil {
			return nil, err
		}
		delta, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.PodStatus{})
		if err != nil {
			return nil, err
		}
		change = json.RawMessage(delta)
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.pod.UID}, "status": change})
}

// finishDeletion lets the API server remove a pod of which nothing runs any more. Where finalizers hold it, the
// rest is theirs.
func (a *agent) finishDeletion(ctx context.Context, p *podState) error {
	if p.deleted {
		return nil
	}
	uid := p.pod.UID
	err := a.nodes[p.pod.Spec.NodeName].client.CoreV1().Pods(p.pod.Namespace).Delete(ctx, p.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
	}
	p.deleted = true
	return nil
}

func phaseEnded(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

func gracePeriod(pod *corev1.Pod) time.Duration {
	if pod.DeletionGracePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
}
