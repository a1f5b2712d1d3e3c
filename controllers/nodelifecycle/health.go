package nodelifecycle

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// health is what is known of one Node's heartbeats. Times are those of our own clock: those in
// the heartbeats are of the Node's, which may be off.
type health struct {
	uid     types.UID
	heardAt time.Time
	renewed metav1.MicroTime // of the Lease
	posted  metav1.Time      // of the Ready condition
	ready   corev1.ConditionStatus
}

// hearAll counts every Node as heard of now.
func (l *lifecycle) hearAll(now time.Time) {
	for _, h := range l.health {
		h.heardAt = now
	}
}

// listen takes note of a Node's heartbeats and, where they have been missing for too long, says
// so in its conditions. It returns the Node as it is then.
func (l *lifecycle) listen(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	h := l.health[node.Name]
	if h == nil || h.uid != node.UID {
		h = &health{uid: node.UID, heardAt: now}
		l.health[node.Name] = h
		l.recorder.Eventf(reference(node), corev1.EventTypeNormal, "RegisteredNode",
			"Node %s event: Registered Node %s in Controller", node.Name, node.Name)
	}
	ready, grace := condition(node, corev1.NodeReady), l.settings.MonitorGracePeriod
	if ready == nil {
		grace = l.settings.StartupGracePeriod // its agent has not yet posted anything
	} else if !ready.LastHeartbeatTime.Equal(&h.posted) || ready.Status != h.ready &&
		ready.Status != corev1.ConditionUnknown {
		h.posted, h.heardAt = ready.LastHeartbeatTime, now
	}
	lease, err := l.leases.Leases(corev1.NamespaceNodeLease).Get(node.Name)
	if err == nil && lease.Spec.RenewTime != nil && !h.renewed.Equal(lease.Spec.RenewTime) { // its clock may step back
		h.renewed, h.heardAt = *lease.Spec.RenewTime, now
	}
	if silent := now.Sub(h.heardAt); silent > 0 && silent <= grace {
		// The round at which it may be given up comes in time, however far apart the others are.
		l.EnqueueAfter(all, grace-silent+time.Nanosecond)
	}
	if now.Sub(h.heardAt) > grace && (ready == nil || ready.Status != corev1.ConditionUnknown) {
		// Silent for too long: nothing is known of it any more.
		if node, err = l.writeUnknown(ctx, node, metav1.NewTime(now)); err != nil {
			return node, err
		}
		ready = condition(node, corev1.NodeReady)
		h.posted = ready.LastHeartbeatTime
	}
	before := h.ready
	h.ready = corev1.ConditionUnknown
	if ready != nil {
		h.ready = ready.Status
	}
	if before == corev1.ConditionTrue && h.ready != corev1.ConditionTrue {
		l.recorder.Eventf(reference(node), corev1.EventTypeNormal, "NodeNotReady",
			"Node %s status is now: NodeNotReady", node.Name)
	}
	return node, nil
}

// judged are the conditions that an agent posts; all become Unknown with it.
var judged = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
	corev1.NodePIDPressure}

func (l *lifecycle) writeUnknown(ctx context.Context, node *corev1.Node, now metav1.Time) (*corev1.Node, error) {
	updated := node.DeepCopy()
	for _, t := range judged {
		c := condition(updated, t)
		switch {
		case c == nil:
			updated.Status.Conditions = append(updated.Status.Conditions, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated",
				Message:           "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionUnknown, "NodeStatusUnknown",
				"Kubelet stopped posting node status.", now
		}
	}
	written, err := l.client().CoreV1().Nodes().UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return node, err
	}
	return written, nil
}

func condition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == t {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// statusOf is "" where there is no such condition.
func statusOf(node *corev1.Node, t corev1.NodeConditionType) corev1.ConditionStatus {
	if c := condition(node, t); c != nil {
		return c.Status
	}
	return ""
}

// reference is how events name a Node: agents do not know its uid, and put the name for it.
func reference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID}
}

// podsNotReady says of the pods on a Node that is not ready that they are not either, so that
// no Service sends anybody there.
func (l *lifecycle) podsNotReady(ctx context.Context, node *corev1.Node) error {
	pods, err := controller.OnNode(l.pods, node.Name)
	if err != nil {
		return err
	}
	errs := make([]error, len(pods))
	controller.InParallel(len(pods), func(i int) {
		if controller.PodReady(pods[i]) {
			errs[i] = l.podNotReady(ctx, pods[i])
		}
	})
	return controller.FirstError(errs...)
}
