package plugins

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// spreadCounts caches how many pods of each node a constraint selects. Few nodes change from one cycle
// to the next, and a burst consists of few kinds of pods; without the cache, a cycle spends most of its
// time matching the tens of pods of each of hundreds of nodes. It belongs to the scheduling loop.
type spreadCounts map[spreadKind]map[*framework.NodeInfo]podCount

// spreadKind identifies the pods that a selector matches in a namespace.
type spreadKind struct {
	namespace, selector string
	all                 bool // labels.Everything and labels.Nothing both read ""
}

// podCount is the number of a node's pods of a kind, as of that version of the node.
type podCount struct {
	version uint64
	n       int
}

// spreadKinds bounds the number of kinds that are cached.
const spreadKinds = 64

// lend passes each constraint of a pod the counts for its kind.
func (s *spreadCounts) lend(namespace string, constraints []spreadConstraint, nodes int) {
	for i := range constraints {
		constraints[i].counted = s.of(namespace, constraints[i].selector, nodes)
	}
}

func (s *spreadCounts) of(namespace string, selector labels.Selector, nodes int) map[*framework.NodeInfo]podCount {
	kind := spreadKind{namespace, selector.String(), selector.Empty()}
	counts := (*s)[kind]
	if counts != nil && len(counts) <= 2*nodes { // otherwise most are of nodes that are gone
		return counts
	}
	if len(*s) >= spreadKinds || *s == nil {
		*s = spreadCounts{}
	}
	counts = map[*framework.NodeInfo]podCount{}
	(*s)[kind] = counts
	return counts
}

// on counts the pods of a node that the constraint selects.
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
