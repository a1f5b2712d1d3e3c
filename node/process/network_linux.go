package process

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// nodeNetworks are those of the nodes.
type nodeNetworks struct {
	mu     sync.Mutex
	router runtime.Router // nil until a node needs it
	byNode map[string]*nodeNetwork
}

// nodeNetwork is a node's. Where it cannot be made, pods are apart from everything, and the Node says why.
type nodeNetwork struct {
	router runtime.Router
	err    error
	tryAt  time.Time // again, where it could not be made
}

// networkRetry is how long a node does without a pod network before it tries again to make one.
const networkRetry = time.Minute

func (n *nodeNetworks) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.router != nil {
		n.router.Close()
	}
}

// of is the network of a node; nil where there is none yet.
func (n *nodeNetworks) of(node string) *nodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byNode[node]
}

// connect puts a pod into its node's network. A pod that cannot be connected still has what it has of itself.
func (r *Runtime) connect(pod *corev1.Pod, p *sandbox.Pod) {
	if p.IP == "" {
		return // it has the machine's
	}
	network := r.openNetwork(pod.Spec.NodeName)
	if network.err != nil {
		return // the Node says so
	}
	if err := p.Connect(network.router); err != nil {
		r.host.Event(pod, corev1.EventTypeWarning, "NetworkNotReady",
			fmt.Sprintf("The pod is not connected to the node's network: %v", err))
		return
	}
	if err := serveHostPorts(network.router, p.IP, hostPorts(pod)); err != nil {
		r.host.Event(pod, corev1.EventTypeWarning, "NetworkNotReady",
			fmt.Sprintf("The pod's host ports are not served: %v", err))
	}
}

// disconnect takes a pod's host ports back. The rest of its network goes with its namespace. The address must be the
// pod's still: it may soon be another's.
func (r *Runtime) disconnect(pod *corev1.Pod, ip string) {
	network := r.networks.of(pod.Spec.NodeName)
	if ip == "" || network == nil || network.err != nil {
		return
	}
	if err := serveHostPorts(network.router, ip, nil); err != nil {
		r.Log.Warn("host ports of a pod that has ended", "pod", pod.Name, "err", err)
	}
}

func serveHostPorts(r runtime.Router, pod string, ports []router.HostPort) error {
	address, err := netip.ParseAddr(pod)
	if err != nil {
		return err
	}
	return r.ServeHostPorts(address, ports)
}

// protocols are the numbers of those that ports have.
var protocols = map[corev1.Protocol]uint8{"": unix.IPPROTO_TCP, corev1.ProtocolTCP: unix.IPPROTO_TCP,
	corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP}

// hostPorts are those that a pod's containers ask for, sidecars included.
func hostPorts(pod *corev1.Pod) (all []router.HostPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				address, _ := netip.ParseAddr(p.HostIP) // the zero Addr where it is empty
				all = append(all, router.HostPort{Address: address.Unmap(), Protocol: protocols[p.Protocol],
					Port: uint16(p.HostPort), PodPort: uint16(p.ContainerPort)})
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return all
}

// Connect implements runtime.Machine.
func (r *Runtime) Connect(node string) {
	if r.host.Subnet(node).IsValid() {
		r.openNetwork(node)
	}
}

// openNetwork makes a node's network, if it is not there.
func (r *Runtime) openNetwork(node string) *nodeNetwork {
	r.networks.mu.Lock()
	defer r.networks.mu.Unlock()
	known, now := r.networks.byNode[node], r.Clock.Now()
	if known != nil && (known.err == nil || now.Before(known.tryAt)) {
		return known
	}
	network := &nodeNetwork{}
	if network.router, network.err = r.makeNetwork(node); network.err != nil {
		network.tryAt = now.Add(networkRetry)
		r.Log.Warn("pods are not connected", "node", node, "err", network.err)
	}
	if r.networks.byNode == nil {
		r.networks.byNode = map[string]*nodeNetwork{}
	}
	r.networks.byNode[node] = network
	if known == nil || known.err != network.err {
		r.host.NodeChanged(node)
		if network.err != nil {
			r.host.NodeEvent(node, corev1.EventTypeWarning, "NetworkNotReady",
				"Pods are not connected: "+network.err.Error())
		}
	}
	return network
}

// makeNetwork connects a node with the router. The name of the node's device is its own on this machine, whatever other
// agents there are.
func (r *Runtime) makeNetwork(node string) (runtime.Router, error) {
	if r.networks.router == nil {
		made, err := r.OpenRouter(sandbox.RouterOf(r.shims()))
		if err != nil {
			return nil, err
		}
		r.networks.router = made
	}
	device := "cox" + runtime.Digest(r.dir, node)[:8]
	return r.networks.router, r.networks.router.AddNode(device, r.host.Subnet(node))
}

// openRouter opens a router of this machine alone.
func openRouter(namespace *os.File) (runtime.Router, error) {
	r, err := router.Open(namespace, router.Options{})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// shims are those of all pods that there are folders of.
func (r *Runtime) shims() []*sandbox.Pod {
	entries, _ := os.ReadDir(filepath.Join(r.dir, "pods"))
	var all []*sandbox.Pod
	for _, e := range entries {
		all = append(all, sandbox.Adopt(sandbox.Config{Dir: r.podDir(types.UID(e.Name()))}))
	}
	return all
}

// Conditions are what the runtime has to report about a node.
func (r *Runtime) Conditions(node string) []corev1.NodeCondition {
	network := r.networks.of(node)
	if network == nil {
		return nil
	}
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "PodsConnected", Message: "pods of this node reach each other and the node",
	}
	// not True, with which nothing would be scheduled here: programs that need no network run all the same
	if network.err != nil {
		c.Reason, c.Message = "PodsIsolated", "pods reach nobody: "+network.err.Error()
	}
	return []corev1.NodeCondition{c}
}
