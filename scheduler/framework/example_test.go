package framework_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// quietNodes keeps pods off nodes that are labelled noisy. It is a complete plugin.
type quietNodes struct{}

func (quietNodes) Name() string { return "QuietNodes" }

func (p quietNodes) Filter(_ *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if node.Node.Labels["noisy"] == "true" {
		return framework.NewStatus(p.Name(), framework.UnschedulableAndUnresolvable, "node(s) were too loud")
	}
	return nil
}

func ExampleFilterPlugin() {
	noisy := framework.NewNodeInfo(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"noisy": "true"}}})
	status := quietNodes{}.Filter(nil, nil, noisy)
	diagnosis := framework.Diagnosis{Total: 3, NodeStatuses: map[string]*framework.Status{"n": status}}
	fmt.Println(diagnosis.Message())
	// Output: 0/3 nodes are available: 1 node(s) were too loud.
}
