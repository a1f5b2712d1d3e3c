package cloudnode_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestCloudNode_RemovesTheUninitializedTaint(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClockedWith(t, controllers.Settings{}, "cloud-node")
	c.CreateNode("n", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{
			{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true",
				Effect: corev1.TaintEffectNoSchedule},
			{Key: "mine", Effect: corev1.TaintEffectNoSchedule},
		}
	})
	c.Reaches("the taint is gone", func() bool {
		taints := c.Node("n").Spec.Taints
		return len(taints) == 1 && taints[0].Key == "mine"
	})
	c.AwaitEvent("Synced", "Node synced successfully")
}
