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
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// syncPod brings a pod as far as it can come now. The work queue sees to it that no pod is worked on twice at once.
func (a *agent) syncPod(ctx context.Context, key runtime.PodKey) error {
	if n := a.nodes[key.Node].acts(); n.Stopped || n.Paused {
		return nil // its pods are looked at when it goes on
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
		return a.dropPod(ctx, key, false) // nothing more will happen, and its address is free
	}
	now := a.Clock.Now()
	p, err := a.podState(pod, now)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !maps.Equal(p.pod.Labels, pod.Labels) || !maps.Equal(p.pod.Annotations, pod.Annotations) {
		p.stale.Store(true) // the downward API shows them
	}
	p.pod = pod
	if pod.DeletionTimestamp != nil && !p.stopping {
		p.stop(now, gracePeriod(pod))
	}
	a.resizePod(a.nodes[key.Node], p)
	if err := a.setUp(ctx, p, now); err != nil {
		return err
	}
	next := p.step(now)
	if !p.setUpAt.IsZero() && !p.stopping && (next.IsZero() || p.setUpAt.Before(next)) {
		next = p.setUpAt
	}
	if p.stopped() && (p.stopping || p.ended()) {
		a.releaseRoom(a.nodes[key.Node], pod.UID) // before others can know that there is room
	}
	if err := a.writeStatus(ctx, p, now); err != nil {
		return err
	}
	a.record(p)
	if pod.DeletionTimestamp != nil && p.stopped() {
		if err := a.tearDown(ctx, pod); err != nil {
			return err
		}
		return a.finishDeletion(ctx, p)
	}
	if !next.IsZero() {
		a.podQueue.AddAfter(key, max(0, next.Sub(now)))
	}
	return nil
}

// setUp prepares the runtime for a pod that is to run, and keeps it up to date.
func (a *agent) setUp(ctx context.Context, p *podState, now time.Time) error {
	if p.stale.Swap(false) {
		if soon := p.setUpOf.Add(runtime.RefreshPause); p.setUpAt.IsZero() || soon.Before(p.setUpAt) {
			p.setUpAt = soon
		}
	}
	due := !p.setUp || !p.setUpAt.IsZero() && !now.Before(p.setUpAt)
	if !due || p.stopping || p.ended() {
		return nil
	}
	p.setUpOf = a.Clock.Now() // which may be later than the beginning of this sync: what comes from now on is not in it
	sandbox, err := a.setUpSandbox(ctx, p.pod, p.addresses)
	if err != nil {
		var failed *runtime.SetUpError
		if errors.As(err, &failed) && ctx.Err() == nil {
			a.Event(p.pod, corev1.EventTypeWarning, failed.Reason, err.Error())
		}
		if p.setUp { // what is there stays as it is
			p.setUpAt = now.Add(runtime.RefreshEvery)
			return nil
		}
		return errors.Join(a.writeStatus(ctx, p, now), fmt.Errorf("set up pod %s/%s: %w", p.pod.Namespace,
			p.pod.Name, err))
	}
	p.setUp, p.setUpAt, p.addresses = true, time.Time{}, sandbox.Addresses
	if sandbox.Again > 0 {
		p.setUpAt = now.Add(sandbox.Again)
	}
	return nil
}

// Calls of the runtime have the kubelet's deadline (--runtime-request-timeout), except that those that set up a sandbox
// have twice as long, as there.
const (
	callTimeout  = 2 * time.Minute
	setUpTimeout = 2 * callTimeout
)

// setUpSandbox calls the runtime's SetUp, with a deadline.
func (a *agent) setUpSandbox(ctx context.Context, pod *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, setUpTimeout)
	defer cancel()
	return a.runtime.SetUp(ctx, pod, addresses)
}

// tearDown calls the runtime's TearDown, with a deadline.
func (a *agent) tearDown(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := a.runtime.TearDown(ctx, pod); err != nil {
		return fmt.Errorf("tear down pod %s/%s: %w", pod.Namespace, pod.Name, err)
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
	if pod.Status.StartTime == nil && pod.DeletionTimestamp == nil {
		if no := a.admit(n, pod); no != nil {
			return a.rejected(pod, no, now), nil
		}
	}
	p = newPodState(pod, a.runtime, a.Address, now)
	switch {
	case pod.Status.StartTime != nil:
		p.resume()
	case pod.DeletionTimestamp != nil: // never came to life: it needs no address
	case pod.Spec.HostNetwork:
		p.addresses = []string{a.Address}
	}
	if len(p.addresses) == 0 && pod.DeletionTimestamp == nil {
		ip, err := n.takeAddress(pod.UID)
		if err != nil {
			if !errors.Is(err, errNoCIDR) {
				a.Event(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox",
					fmt.Sprintf("Failed to create pod sandbox: %v", err))
			}
			return nil, fmt.Errorf("address for pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		p.addresses = []string{ip}
	}
	a.mu.Lock()
	a.states[pod.UID] = p
	a.mu.Unlock()
	return p, nil
}

// rejected is a pod that may not run.
func (a *agent) rejected(pod *corev1.Pod, no *refusal, now time.Time) *podState {
	p := newPodState(pod, a.runtime, a.Address, now)
	p.refused = true
	p.event(corev1.EventTypeWarning, no.reason, "%s", no.message)
	p.end(no.reason, "Pod was rejected: "+no.message, now, 0)
	return p
}

// dropPod forgets a pod that is gone or has ended.
func (a *agent) dropPod(ctx context.Context, key runtime.PodKey, gone bool) error {
	a.mu.Lock()
	p := a.states[key.UID]
	delete(a.states, key.UID)
	a.mu.Unlock()
	a.releaseRoom(a.nodes[key.Node], key.UID)
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stop(a.Clock.Now(), 0) // deleted by force, it had no chance to end
		if n := a.nodes[p.pod.Spec.NodeName]; n != nil {
			defer n.releaseAddress(key.UID)
		}
	}
	switch {
	case gone:
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return a.runtime.Forget(ctx, key.UID)
	case p != nil:
		return a.tearDown(ctx, p.pod)
	}
	return nil
}

// writeStatus writes the status if it has changed, or has been overwritten.
func (a *agent) writeStatus(ctx context.Context, p *podState, now time.Time) error {
	status := p.status(now)
	own := p.own(status)
	if p.overwritten() {
		p.written = false // so that the patch is complete
	} else if p.sent != nil && equality.Semantic.DeepEqual(p.sent, own) {
		return nil
	}
	patch, err := statusPatch(p, own, status.Conditions)
	if err != nil {
		return fmt.Errorf("status patch: %w", err)
	}
	pod, err := a.nodes[p.pod.Spec.NodeName].client.CoreV1().Pods(p.pod.Namespace).Patch(ctx, p.pod.Name,
		types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil // the informer will say so
	}
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
	}
	if !p.written { // the patch has removed nothing: the next one does
		own = own.DeepCopy()
		for _, c := range pod.Status.Conditions {
			if isResizeCondition(c.Type) && findCondition(own.Conditions, c.Type) == nil {
				own.Conditions = append(own.Conditions, c)
			}
		}
	}
	p.sent, p.sentVersion, p.written = own, pod.ResourceVersion, true
	return nil
}

// conditionOrder is the directive of a strategic merge patch that puts conditions into an order.
type conditionOrder struct {
	Type corev1.PodConditionType `json:"type"`
}

// statusPatch is a strategic merge patch. The first one of a pod says everything; later ones what is
// different, so that what has ended to be so goes away. The UID makes it miss a later pod of the same name.
func statusPatch(p *podState, status *corev1.PodStatus, conditions []corev1.PodCondition) ([]byte, error) {
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
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.pod.UID}, "status": change})
}

// finishDeletion lets the API server remove a pod of which nothing runs any more. Where finalizers hold it, the
// rest is theirs.
func (a *agent) finishDeletion(ctx context.Context, p *podState) error {
	if p.deleted {
		return nil
	}
	uid := p.pod.UID
	err := a.nodes[p.pod.Spec.NodeName].client.CoreV1().Pods(p.pod.Namespace).Delete(ctx, p.pod.Name,
		metav1.DeleteOptions{
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
	return amount.Seconds(*pod.DeletionGracePeriodSeconds)
}
