package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// syncPod brings a pod as far as possible at this time. The queue never gives a pod to two workers at once.
func (a *agent) syncPod(ctx context.Context, key runtime.PodKey) error {
	if n := a.nodes[key.Node].acts(); n.Stopped || n.Paused {
		return nil // nodeSeen queues the node's pods again when it continues
	}
	pod, err := a.nodes[key.Node].pods.Pods(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil || pod.UID != key.UID || pod.Spec.NodeName != key.Node {
		return a.dropPod(ctx, key, true)
	}
	if a.isForged(pod) {
		return a.deleteForged(ctx, key, pod)
	}
	if pod.DeletionTimestamp == nil && phaseEnded(pod.Status.Phase) {
		return a.dropPod(ctx, key, false) // the pod will not change any more, and its address is free
	}
	now := a.Clock.Now()
	p, err := a.host(pod, now)
	if err != nil {
		return err
	}
	if err := a.adopt(ctx, p); err != nil {
		return err
	}
	a.updatePod(p, pod, now)
	if err := a.setUp(ctx, p, now); err != nil {
		return err
	}
	next := a.advance(ctx, p)
	p.mu.Lock()
	stopping, stopped := p.state.Stopping(), p.state.Stopped()
	ended := stopped && (stopping || p.state.Ended())
	deadline, renewal := p.state.Deadline(), p.renewal
	if stopping || p.halted {
		renewal = time.Time{} // setUp does nothing any more
	}
	p.mu.Unlock()
	if !p.setUpAt.IsZero() && !stopping && (next.IsZero() || p.setUpAt.Before(next)) {
		next = p.setUpAt
	}
	if ended {
		a.releaseRoom(a.nodes[key.Node], pod.UID) // before other clients can learn from the status that there is room
	}
	if err := a.writeStatus(ctx, p); err != nil {
		return err
	}
	if pod.DeletionTimestamp != nil && stopped {
		if err := a.tearDown(ctx, pod); err != nil {
			return err
		}
		return a.finishDeletion(ctx, p, pod)
	}
	a.queueAgain(key, next, deadline, renewal)
	return nil
}

// queueAgain queues a pod for the time of its next step, and for moments on the wall clock; a zero time is never. The
// next step follows from delays since events on the node, such as back-offs: like these delays, the wait for it is not
// affected when the wall clock is set. The moments follow from times in objects, and the pod is queued when the wall
// clock shows them.
func (a *agent) queueAgain(key runtime.PodKey, next time.Time, moments ...time.Time) {
	if !next.IsZero() {
		a.podQueue.AddAfter(key, max(0, next.Sub(a.Clock.Now())))
	}
	for _, moment := range moments {
		if !moment.IsZero() {
			a.podQueue.AddAt(key, moment)
		}
	}
}

// updatePod passes the pod from the cache to its state machine.
func (a *agent) updatePod(p *hostedPod, pod *corev1.Pod, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.state.Pod()
	if !maps.Equal(before.Labels, pod.Labels) || !maps.Equal(before.Annotations, pod.Annotations) {
		p.stale.Store(true) // the downward API shows them
	}
	p.state.Update(pod)
	p.goOn(func() (*corev1.Pod, error) {
		return a.nodes[pod.Spec.NodeName].pods.Pods(pod.Namespace).Get(pod.Name)
	})
	if pod.DeletionTimestamp != nil && !p.state.Stopping() {
		p.state.Stop(now, gracePeriod(pod))
	}
	a.resizePod(a.nodes[pod.Spec.NodeName], p)
}

// setUp calls the runtime's SetUp, for a pod that may start containers, for the first time or when it is due again.
func (a *agent) setUp(ctx context.Context, p *hostedPod, now time.Time) error {
	if p.stale.Swap(false) {
		if soon := p.lastSetUp.Add(runtime.RefreshPause); p.setUpAt.IsZero() || soon.Before(p.setUpAt) {
			p.setUpAt = soon
		}
	}
	p.mu.Lock()
	pod, addresses := p.state.Pod(), p.state.Addresses()
	over := p.halted || p.state.Stopping() || p.state.Ended()
	p.mu.Unlock()
	due := !p.setUp || reached(p.setUpAt, now) || reached(p.renewal, now)
	if !due || over {
		return nil
	}
	p.lastSetUp = a.Clock.Now() // may be later than now: SetUp may miss changes from this time on
	sandbox, err := a.setUpSandbox(ctx, p, pod, addresses)
	if err != nil {
		return a.setUpFailed(ctx, p, pod, err)
	}
	p.setUp, p.setUpAt, p.renewal = true, time.Time{}, sandbox.Renewal.Round(0)
	if sandbox.Again > 0 {
		p.setUpAt = now.Add(sandbox.Again)
	}
	if reached(p.renewal, now) { // the API server's clock is behind: do not renew all the time
		p.setUpAt, p.renewal = now.Add(runtime.RefreshPause), time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.SetAddresses(sandbox.Addresses)
	return nil
}

// reached reports whether a time has come; a zero time never does.
func reached(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

// setUpFailed reports a failure of SetUp. A pod that was set up before continues as it is.
func (a *agent) setUpFailed(ctx context.Context, p *hostedPod, pod *corev1.Pod, err error) error {
	p.mu.Lock()
	halted := p.halted
	p.mu.Unlock()
	if halted {
		return nil // the call was cancelled, and the pod is queued
	}
	var failed *runtime.SetUpError
	if errors.As(err, &failed) && ctx.Err() == nil {
		a.Event(pod, corev1.EventTypeWarning, failed.Reason, err.Error())
	}
	if p.setUp {
		p.setUpAt, p.renewal = a.Clock.Now().Add(runtime.RefreshEvery), time.Time{}
		return nil
	}
	return errors.Join(a.writeStatus(ctx, p), fmt.Errorf("set up pod %s/%s: %w", pod.Namespace, pod.Name, err))
}

// host returns a pod that the agent has taken on. It takes on a pod that is new, from its status if an earlier agent
// ran it.
func (a *agent) host(pod *corev1.Pod, now time.Time) (*hostedPod, error) {
	if p := a.hostedPod(pod.UID); p != nil {
		return p, nil
	}
	n := a.nodes[pod.Spec.NodeName]
	if pod.Status.StartTime == nil && pod.DeletionTimestamp == nil {
		if rejection := a.admit(n, pod); rejection != nil {
			return a.rejected(pod, rejection, now), nil
		}
	}
	p := a.newHostedPod(pod, now)
	if pod.Status.StartTime != nil {
		p.resume()
	}
	if pod.Spec.HostNetwork && pod.DeletionTimestamp == nil && !phaseEnded(pod.Status.Phase) {
		if host, known := runtime.HostAddress(a.Address, n.subnet()); known { // an earlier agent may have had another
			p.state.SetAddresses([]string{host})
		}
	}
	if len(p.state.Addresses()) == 0 && pod.DeletionTimestamp == nil {
		ip, err := n.takeAddress(pod.UID)
		if err != nil {
			if !errors.Is(err, errNoCIDR) {
				a.Event(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox",
					fmt.Sprintf("Failed to create pod sandbox: %v", err))
			}
			return nil, fmt.Errorf("assign address to pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		p.state.SetAddresses([]string{ip})
	}
	a.mu.Lock()
	a.pods[pod.UID] = p
	a.mu.Unlock()
	return p, nil
}

func (a *agent) newHostedPod(pod *corev1.Pod, now time.Time) *hostedPod {
	host, _ := runtime.HostAddress(a.Address, a.nodes[pod.Spec.NodeName].subnet())
	return &hostedPod{state: podstate.New(pod, host, now, a.runtimeOf(pod).Delay(pod))}
}

// resume continues with a pod that an earlier agent has started.
func (p *hostedPod) resume() {
	p.state.Resume()
	pod := p.state.Pod()
	p.sent, p.sentVersion, p.written = p.state.Own(&pod.Status), pod.ResourceVersion, true
}

// rejected returns a pod that may not run.
func (a *agent) rejected(pod *corev1.Pod, reason *rejection, now time.Time) *hostedPod {
	p := a.newHostedPod(pod, now)
	p.state.Reject(reason.reason, reason.message, now)
	return p
}

// dropPod forgets a pod that is gone or has ended.
func (a *agent) dropPod(ctx context.Context, key runtime.PodKey, gone bool) error {
	a.mu.Lock()
	p := a.pods[key.UID]
	delete(a.pods, key.UID)
	a.mu.Unlock()
	a.releaseRoom(a.nodes[key.Node], key.UID)
	if p != nil {
		p.mu.Lock()
		p.state.Stop(a.Clock.Now(), 0) // a pod that was deleted by force has no grace period
		p.halt()
		p.mu.Unlock()
		a.advance(ctx, p)
		defer a.nodes[key.Node].releaseAddress(key.UID)
	}
	switch {
	case gone:
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return a.runtime.Forget(ctx, key.UID)
	case p != nil:
		return a.tearDown(ctx, p.state.Pod())
	}
	return nil
}

// writeStatus writes the status if it has changed, or another client has overwritten it.
func (a *agent) writeStatus(ctx context.Context, p *hostedPod) error {
	p.mu.Lock()
	pod := p.state.Pod()
	status := p.state.Status(a.Clock.Now(), p.previous())
	own := p.state.Own(status)
	overwritten := p.overwritten()
	if overwritten {
		p.written = false // so that the patch is complete
	}
	p.mu.Unlock()
	if !overwritten && p.sent != nil && equality.Semantic.DeepEqual(p.sent, own) {
		return nil
	}
	patch, err := statusPatch(p, pod, own, status.Conditions)
	if err != nil {
		return fmt.Errorf("create status patch: %w", err)
	}
	written, err := a.nodes[pod.Spec.NodeName].client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil // the informer will show that
	}
	if err != nil {
		return fmt.Errorf("write status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if !p.written { // the complete patch has removed no condition: the next patch has to
		own = own.DeepCopy()
		for _, c := range written.Status.Conditions {
			if podstate.IsResizeCondition(c.Type) && podstate.Condition(own.Conditions, c.Type) == nil {
				own.Conditions = append(own.Conditions, c)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent, p.sentVersion, p.written = own, written.ResourceVersion, true
	return nil
}

// conditionOrder is the directive of a strategic merge patch that puts conditions into an order.
type conditionOrder struct {
	Type corev1.PodConditionType `json:"type"`
}

// statusPatch returns a strategic merge patch. The first patch of a pod is complete; later ones have the differences,
// so that they also remove fields. The UID keeps it from a later pod of the same name. Only the pod's worker calls
// it.
func statusPatch(p *hostedPod, pod *corev1.Pod, status *corev1.PodStatus, conditions []corev1.PodCondition) (
	[]byte, error) {
	var change any
	if !p.written {
		order := make([]conditionOrder, len(conditions))
		for i := range conditions {
			order[i].Type = conditions[i].Type
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
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": change})
}

// finishDeletion makes the API server remove a pod that has stopped. If finalizers keep it, their owners have to finish
// the deletion.
func (a *agent) finishDeletion(ctx context.Context, p *hostedPod, pod *corev1.Pod) error {
	if p.deleted {
		return nil
	}
	uid := pod.UID
	err := a.nodes[pod.Spec.NodeName].client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &uid},
		})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
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
	return amount.Seconds(*pod.DeletionGracePeriodSeconds)
}
