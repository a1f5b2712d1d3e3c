package node

import (
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

// hostedNode is one of the nodes that the agent stands for. Its addresses have a lock of their own. Of the other
// fields, lease belongs to the task renewLease and the rest to the task syncNode, each of which is done by
// one worker at a time.
type hostedNode struct {
	name      string
	machineID string
	*link
	addresses
	account account

	behaviour atomic.Pointer[simulated.Behaviour] // nil is the usual one
	pressure  pressure

	registered bool // the Node exists or did: where it was deleted it is not made again
	reported   time.Time
	lease      *coordinationv1.Lease
}

// acts is how the node behaves now.
func (n *hostedNode) acts() simulated.Behaviour {
	if b := n.behaviour.Load(); b != nil {
		return *b
	}
	return simulated.Behaviour{}
}

// behave takes note of a simulated Node's annotations, and reports whether they say something new.
func (n *hostedNode) behave(node *corev1.Node) bool {
	b := simulated.BehaviourOf(node)
	if n.acts() == b {
		return false
	}
	n.behaviour.Store(&b)
	return true
}
