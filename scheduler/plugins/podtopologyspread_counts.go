package plugins

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// spreadCounts remembers how many pods of each node a constraint is about. Hardly a node changes from one cycle to the next, and
// a burst is of few kinds of pods; to ask each pod of hundreds of nodes with tens of them is most of a cycle. It belongs to the
// scheduling loop.
type spreadCounts map[spreadKind]map[*framework.NodeInfo]podCount

// spreadKind are the pods that a selector finds in a namespace.
type spreadKind struct {
	namespace, selector string
	all                 bool // labels.Everything and labels.Nothing both read ""
}

// podCount is how many of a node's pods are of a kind, as of that version of the node.
type podCount struct {
	version uint64
	n       int
}

// spreadKinds bounds how many kinds are remembered.
const spreadKinds = 64

// lend gives each constraint of a pod the counts for its kind.
func (s *spreadCounts) lend(namespace string, constraints []spreadConstraint, nodes int) {
	for i := range constraints {
		constraints[i].counted = s.of(namespace, constraints[i].selector, nodes)
	}
}

func (s *spreadCounts) of(namespace string, selector labels.Selector, nodes int) map[*framework.NodeInfo]podCount {
	kind := spreadKind{namespace, selector.String(), selector.Empty()}
	counts := (*s)[kind]
	if counts != nil && len(counts) <= 2*nodes { // else most are of nodes that are gone
		return counts
	}
	if len(*s) >= spreadKinds || *s == nil {
		*s = spreadCounts{}
	}
	counts = map[*framework.NodeInfo]podCount{}
	(*s)[kind] = counts
	return counts
}

// on counts the pods of a node that the constraint is about.
func (c *spreadConstraint) on(namespace string, node *framework.NodeInfo) int {
	if len(node.Pods) < 4 {
		return c.matches(namespace, node.Pods) // which is as quick
	}
	known := c.counted[node]
	if known.version != node.Version {
		known = podCount{node.Version, c.matches(namespace, node.Pods)}
		c.counted[node] = known
	}
	return known.n
}
