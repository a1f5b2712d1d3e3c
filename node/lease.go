package node

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaseDurations is how many heartbeats may fail before a Lease has run out.
const leaseDurations = 4

// heartbeat renews the Lease of a node. While there is no such Node there is none.
func (a *agent) heartbeat(ctx context.Context, n *hostedNode) error {
	if n.acts().Stopped {
		return nil // as is known when it goes on
	}
	node, err := n.link.nodes.Get(n.name)
	if apierrors.IsNotFound(err) {
		n.lease = nil
		return nil // the informer's event begins it again
	}
	if err != nil {
		return err
	}
	if err := a.renew(ctx, n, node); err != nil {
		return fmt.Errorf("lease of node %s: %w", n.name, err)
	}
	a.nodeQueue.AddAfter(nodeTask{n.name, renewLease}, a.HeartbeatEvery)
	return nil
}

// renew updates the Lease as it was last written: one request. Where that is refused, it begins again from
// what is there.
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
	return err // tried again soon
}

// leaseFor is lease with the heartbeat of this moment.
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
