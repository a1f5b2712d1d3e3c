package node

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaseDurations is the number of heartbeats that may fail before a Lease expires.
const leaseDurations = 4

// heartbeat renews the Lease of a node. Without a Node there is no Lease.
func (a *agent) heartbeat(ctx context.Context, n *hostedNode) error {
	if n.acts().Stopped {
		return nil // nodeSeen queues the task again when the node continues
	}
	node, err := n.link.nodes.Get(n.name)
	if apierrors.IsNotFound(err) {
		n.lease = nil
		return nil // nodeSeen queues the task again when the Node appears
	}
	if err != nil {
		return err
	}
	if err := a.renew(ctx, n, node); err != nil {
		return fmt.Errorf("renew lease of node %s: %w", n.name, err)
	}
	a.nodeQueue.AddAfter(nodeTask{n.name, renewLease}, a.HeartbeatEvery)
	return nil
}

// renew updates the Lease as it was last written, with one request. If the server rejects that, it starts over from the
// existing Lease.
func (a *agent) renew(ctx context.Context, n *hostedNode, node *corev1.Node) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if n.lease != nil {
		renewed, err := leases.Update(ctx, a.leaseFor(n.lease, node), metav1.UpdateOptions{})
		if err == nil {
			n.lease = renewed
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		n.lease = nil
	}
	created, err := leases.Create(ctx, a.leaseFor(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Namespace: corev1.NamespaceNodeLease},
	}, node), metav1.CreateOptions{})
	switch {
	case err == nil:
		n.lease = created
		return nil
	case apierrors.IsAlreadyExists(err):
		current, err := leases.Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.lease, err = leases.Update(ctx, a.leaseFor(current, node), metav1.UpdateOptions{})
		if err != nil {
			n.lease = nil
		}
		return err
	}
	return err // the queue tries again soon
}

// leaseFor returns a copy of a Lease that is renewed now.
func (a *agent) leaseFor(lease *coordinationv1.Lease, node *corev1.Node) *coordinationv1.Lease {
	lease = lease.DeepCopy()
	now := metav1.NewMicroTime(a.Clock.Now())
	seconds := int32((leaseDurations * a.HeartbeatEvery).Seconds())
	lease.Spec.HolderIdentity = &node.Name
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &now
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	return lease
}
