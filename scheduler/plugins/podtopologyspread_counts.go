package plugins

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// spreadCounts caches the number of pods of each node that a constraint selects. Few nodes change from one cycle to
// the next, and a burst consists of few kinds of pods. Without the cache, a cycle spends most of its time on
// matching the tens of pods of each of hundreds of nodes. The scheduling loop owns it.
type spreadCounts map[spreadKind]map[*framework.NodeInfo]podCount

// spreadKind identifies the pods that a selector matches in a namespace.
type spreadKind struct {
	namespace, selector string
	all                 bool // tells labels.Everything from labels.Nothing: both have the text ""
}

// podCount is the number of a node's pods of a kind, at a version of the node.
type podCount struct {
	version uint64
	n       int
}

// spreadKinds limits the number of cached kinds.
const spreadKinds = 64

// lend gives each constraint of a pod the counts of its kind.
func (s *spreadCounts) lend(namespace string, constraints []spreadConstraint, nodes int) {
	for i := range constraints {
		constraints[i].counted = s.of(namespace, constraints[i].selector, nodes)
	}
}

func (s *spreadCounts) of(namespace string, selector labels.Selector, nodes int) map[*framework.NodeInfo]podCount {
	kind := spreadKind{namespace, selector.String(), selector.Empty()}
	counts := (*s)[kind]
	if counts != nil && len(counts) <= 2*nodes { // otherwise most counts are of deleted nodes
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
		return c.matches(namespace, node.Pods) // as fast as the cache
	}
	cached := c.counted[node]
	if cached.version != node.Version {
		cached = podCount{node.Version, c.matches(namespace, node.Pods)}
		c.counted[node] = cached
	}
	return cached.n
}
