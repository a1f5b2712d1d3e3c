package plugins

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// After any change to the pods of nodes and of their copies, the cached counts must equal a new count.
func TestSpreadCounts_AreUpToDate(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	newNode := func(i int) *framework.NodeInfo {
		return framework.NewNodeInfo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}})
	}
	nodes := []*framework.NodeInfo{newNode(0), newNode(1), newNode(2)}
	selectors := []labels.Selector{labels.SelectorFromSet(labels.Set{"app": "a"}),
		labels.SelectorFromSet(labels.Set{"app": "b"}), labels.Everything(), labels.Nothing()}
	var counts spreadCounts
	for i := range 3000 {
		index := random.IntN(len(nodes))
		node := nodes[index]
		switch random.IntN(8) {
		case 0:
			nodes[index] = node.Clone()
		case 1:
			node.CopyFrom(nodes[random.IntN(len(nodes))])
		case 2, 3:
			if len(node.Pods) > 0 {
				node.RemovePod(node.Pods[random.IntN(len(node.Pods))].Pod.UID)
			}
		case 4:
			nodes[index] = newNode(i)
		default:
			node.AddPod(framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(fmt.Sprint(i)), Namespace: []string{"x", "y"}[random.IntN(2)],
				Labels: map[string]string{"app": []string{"a", "b"}[random.IntN(2)]}}}))
		}
		for _, namespace := range []string{"x", "y"} {
			for _, selector := range selectors {
				c := []spreadConstraint{{selector: selector}}
				counts.lend(namespace, c, len(nodes))
				for _, n := range nodes {
					require.Equal(t, c[0].matches(namespace, n.Pods), c[0].on(namespace, n))
				}
			}
		}
	}
}
