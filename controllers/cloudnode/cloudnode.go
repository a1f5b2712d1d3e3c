// Package cloudnode initialises Nodes where there is no cloud to do so.
//
// A kubelet that expects a cloud registers its Node with the taint
// node.cloudprovider.kubernetes.io/uninitialized, and no pod runs there until the cloud's controller has added
// its information about the machine. Without a cloud there is none beyond the kubelet's, so this controller
// removes the taint. With --cloud-provider=external it leaves that to the cloud's own controller manager.
package cloudnode

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

const taintKey = "node.cloudprovider.kubernetes.io/uninitialized"

func uninitialized(t corev1.Taint) bool { return t.Key == taintKey }

// New returns the controller. Its keys are Nodes.
func New(env *controller.Env) (*controller.Controller, error) {
	nodes := env.Informers.Core().V1().Nodes()
	recorder := env.Recorder("cloud-node-controller")
	c := controller.New(env, "cloud-node", func(ctx context.Context, name string) error {
		node, err := nodes.Lister().Get(name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || !slices.ContainsFunc(node.Spec.Taints, uninitialized) {
			return err
		}
		node = node.DeepCopy()
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, uninitialized)
		if _, err := env.Client().CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("initialise node %s: %w", name, err)
		}
		recorder.Event(node, corev1.EventTypeNormal, "Synced", "Node synced successfully")
		return nil
	})
	if env.Settings.Node.ExternalCloud {
		return c, nil
	}
	wake := func(n *corev1.Node) {
		if slices.ContainsFunc(n.Spec.Taints, uninitialized) {
			c.EnqueueObject(n)
		}
	}
	controller.Watch(c, nodes.Informer(), controller.Handler[*corev1.Node]{
		Add: wake, Update: func(_, n *corev1.Node) { wake(n) },
	})
	return c, nil
}
