package node

import (
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

// hostedNode is one of the agent's nodes. Its addresses, account and pressure have locks of their own. Of the other
// fields, lease belongs to the task renewLease, and registered and reported to the task syncNode; each task has one
// worker at a time.
type hostedNode struct {
	name      string
	machineID string
	*link
	addresses
	account account

	behaviour atomic.Pointer[simulated.Behaviour] // nil is the normal one
	pressure  pressure

	registered bool // the Node exists or has existed: a deleted Node is not created again
	reported   time.Time
	lease      *coordinationv1.Lease
}

// acts returns the node's present behaviour.
func (n *hostedNode) acts() simulated.Behaviour {
	if b := n.behaviour.Load(); b != nil {
		return *b
	}
	return simulated.Behaviour{}
}

// behave reads the behaviour from a simulated Node's annotations, and reports whether it has changed.
func (n *hostedNode) behave(node *corev1.Node) bool {
	b := simulated.BehaviourOf(node)
	if n.acts() == b {
		return false
	}
	n.behaviour.Store(&b)
	return true
}
