package node

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/events"
	"github.com/coxswain-dev/coxswain/node/process"
)

// nodeNetworks are those of the nodes.
type nodeNetworks struct {
	mu     sync.Mutex
	all    *process.Networks // nil until a pod needs one
	byNode map[string]*nodeNetwork
}

// nodeNetwork is a node's. Where it cannot be made, pods are apart from everything, and the Node says why.
type nodeNetwork struct {
	*process.Network
	err   error
	tryAt time.Time // again, where it could not be made
}

// networkRetry is how long a node does without a pod network before it tries again to make one.
const networkRetry = time.Minute

func (n *nodeNetworks) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all != nil {
		n.all.Close()
	}
}

// of is the network of a node; nil where there is none yet.
func (n *nodeNetworks) of(node string) *nodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byNode[node]
}

// connect puts a pod into its node's network. A pod that cannot be connected still has what it has of itself.
func (r *processRuntime) connect(pod *corev1.Pod, p *process.Pod) {
	if p.IP == "" {
		return // it has the machine's
	}
	network := r.openNetwork(r.agent.nodes[pod.Spec.NodeName])
	if network.err != nil {
		return // the Node says so
	}
	if err := network.Connect(p); err != nil {
		r.agent.event(pod, corev1.EventTypeWarning, "NetworkNotReady", fmt.Sprintf("The pod is not connected to the node's network: %v", err))
	}
}

// openNetwork makes a node's network when the first pod needs it.
func (r *processRuntime) openNetwork(n *simNode) *nodeNetwork {
	r.networks.mu.Lock()
	defer r.networks.mu.Unlock()
	known, now := r.networks.byNode[n.name], r.agent.Clock.Now()
	if known != nil && (known.err == nil || now.Before(known.tryAt)) {
		return known
	}
	network := &nodeNetwork{}
	if network.Network, network.err = r.makeNetwork(n); network.err != nil {
		network.tryAt = now.Add(networkRetry)
		r.log.Warn("pods are not connected", "node", n.name, "err", network.err)
	}
	if r.networks.byNode == nil {
		r.networks.byNode = map[string]*nodeNetwork{}
	}
	r.networks.byNode[n.name] = network
	if known == nil || known.err != network.err {
		r.agent.nodeQueue.Add(nodeTask{n.name, syncNode})
		if network.err != nil {
			r.agent.events.Record(events.Event{
				About: nodeReference(n.name), Component: "kubelet", Host: n.name, Type: corev1.EventTypeWarning,
				Reason: "NetworkNotReady", Message: "Pods are not connected: " + network.err.Error(),
			})
		}
	}
	return network
}

// makeNetwork makes a node's network beside those of the others. The name of its device is its own on this machine, whatever other
// agents there are.
func (r *processRuntime) makeNetwork(n *simNode) (network *process.Network, err error) {
	if r.networks.all == nil {
		if r.networks.all, err = process.OpenNetworks(r.shims()); err != nil {
			r.networks.all = nil
			return nil, err
		}
	}
	return r.networks.all.Open("cox"+digest(r.dir, n.name)[:8], n.subnet())
}

// shims are those of all pods that there are folders of.
func (r *processRuntime) shims() []*process.Pod {
	entries, _ := os.ReadDir(filepath.Join(r.dir, "pods"))
	var all []*process.Pod
	for _, e := range entries {
		all = append(all, process.Adopt(process.Sandbox{Dir: r.podDir(types.UID(e.Name()))}))
	}
	return all
}

// nodeConditions are what the runtime has to say about a node.
func (r *processRuntime) nodeConditions(n *simNode) []corev1.NodeCondition {
	network := r.networks.of(n.name)
	if network == nil {
		return nil
	}
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "PodsConnected", Message: "pods of this node reach each other and the node",
	}
	if network.err != nil { // not True, with which nothing would be scheduled here: programs that need no network run all the same
		c.Reason, c.Message = "PodsIsolated", "pods reach nobody: "+network.err.Error()
	}
	return []corev1.NodeCondition{c}
}
