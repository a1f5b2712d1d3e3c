package controlplane

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// systemNamespaces exist in every cluster.
var systemNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic,
	corev1.NamespaceNodeLease}

// systemPriorityClasses are the classes of the pods that a cluster or a node cannot work without.
var systemPriorityClasses = []schedulingv1.PriorityClass{
	{
		ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
		Value:       2000001000,
		Description: "Used for system critical pods that must not be moved from their current node.",
	},
	{
		ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical"},
		Value:      2000000000,
		Description: "Used for system critical pods that must run in the cluster, but can be moved to another " +
			"node if necessary.",
	},
}

// Bootstrap writes the objects that every cluster has and this one lacks. Several servers may do so at once.
func (c *ControlPlane) Bootstrap(ctx context.Context) error {
	kinds := c.Registry.Snapshot()
	namespaces := kinds.Kind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if namespaces == nil {
		return errors.New("apiserver: the registry has no Namespace")
	}
	var missing []storage.Write
	add := func(res *api.Resource, obj api.Object) error {
		_, err := c.Objects.Collection(res).Get(ctx, "", obj.GetName(), storage.At{Any: true})
		if err == nil || errors.As(err, new(*storage.Damaged)) { // a damaged object exists, too
			return nil
		}
		write, err := c.Objects.Create(res, obj)
		missing = append(missing, write)
		return err
	}
	for _, name := range systemNamespaces {
		if err := add(namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	if classes := kinds.Kind(schedulingv1.SchemeGroupVersion.WithKind("PriorityClass")); classes != nil {
		for i := range systemPriorityClasses {
			if err := add(classes, systemPriorityClasses[i].DeepCopy()); err != nil {
				return err
			}
		}
	}
	flow, err := c.missingFlowControl(ctx)
	if err != nil {
		return err
	}
	missing = append(missing, flow...)
	if len(missing) == 0 {
		return nil
	}
	_, err = c.Objects.Commit(ctx, missing...)
	if errors.Is(err, storage.ErrExists) {
		return c.Bootstrap(ctx) // another server was quicker
	}
	if err != nil {
		return fmt.Errorf("create the objects that every cluster has: %w", err)
	}
	return nil
}
