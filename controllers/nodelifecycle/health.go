package nodelifecycle

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// health holds the last heartbeat of one Node. heardAt is a time of this process' clock. The times inside heartbeats
// come from the Node's clock, which may be wrong: they are only compared for a change.
type health struct {
	uid     types.UID
	heardAt time.Time        // when the last heartbeat was seen
	renewed metav1.MicroTime // of the Lease
	posted  metav1.Time      // of the Ready condition
	ready   corev1.ConditionStatus
}

// renewAll restarts the grace period of every Node, as if each had sent a heartbeat now.
func (l *lifecycle) renewAll(now time.Time) {
	for _, h := range l.health {
		h.heardAt = now
	}
}

// observe records a Node's heartbeat. If heartbeats have been missing for longer than the grace period, it sets the
// Node's conditions to Unknown. It returns the updated Node.
func (l *lifecycle) observe(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	h := l.health[node.Name]
	if h == nil || h.uid != node.UID {
		h = &health{uid: node.UID, heardAt: now}
		l.health[node.Name] = h
		l.recorder.Eventf(reference(node), corev1.EventTypeNormal, "RegisteredNode",
			"Node %s event: Registered Node %s in Controller", node.Name, node.Name)
	}
	ready, grace := condition(node, corev1.NodeReady), l.settings.MonitorGracePeriod
	if ready == nil {
		grace = l.settings.StartupGracePeriod // its agent has not posted a status yet
	} else if !ready.LastHeartbeatTime.Equal(&h.posted) || ready.Status != h.ready &&
		ready.Status != corev1.ConditionUnknown {
		h.posted, h.heardAt = ready.LastHeartbeatTime, now
	}
	lease, err := l.leases.Leases(corev1.NamespaceNodeLease).Get(node.Name)
	// Any other renewTime is a heartbeat, even an earlier one: the Node's clock may step back.
	if err == nil && lease.Spec.RenewTime != nil && !h.renewed.Equal(lease.Spec.RenewTime) {
		h.renewed, h.heardAt = *lease.Spec.RenewTime, now
	}
	if silent := now.Sub(h.heardAt); silent > 0 && silent <= grace {
		// A round runs when the grace period ends, even if the period between rounds is longer.
		l.EnqueueAfter(all, grace-silent+time.Nanosecond)
	}
	if now.Sub(h.heardAt) > grace && (ready == nil || ready.Status != corev1.ConditionUnknown) {
		// No heartbeat for the grace period: the state of the Node is unknown.
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

// agentConditions are the conditions that an agent posts. All become Unknown when its heartbeats stop.
var agentConditions = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
	corev1.NodePIDPressure}

// writeUnknown sets the agent's conditions to Unknown and adds the missing ones. It returns the updated Node; with an
// error, the old one.
func (l *lifecycle) writeUnknown(ctx context.Context, node *corev1.Node, now metav1.Time) (*corev1.Node, error) {
	updated := node.DeepCopy()
	for _, t := range agentConditions {
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

// statusOf returns the status of a condition, "" if the Node does not have the condition.
func statusOf(node *corev1.Node, t corev1.NodeConditionType) corev1.ConditionStatus {
	if c := condition(node, t); c != nil {
		return c.Status
	}
	return ""
}

// reference returns the object reference of a Node for events, with its uid. Events of agents have the name in its
// place, since agents do not know the uid.
func reference(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID}
}

// podsNotReady sets Ready=False on the pods of a Node that is not ready, so that no Service routes traffic to them.
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
