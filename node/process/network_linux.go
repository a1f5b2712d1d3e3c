package process

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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

// nodeNetworks holds the networks of all nodes of this agent.
type nodeNetworks struct {
	mu     sync.Mutex     // guards the fields below
	router runtime.Router // shared by all nodes; nil until the first node needs it
	byNode map[string]*nodeNetwork
}

// nodeNetwork is the network of one node. If it could not be made, the node's pods are isolated, which its condition
// reports.
type nodeNetwork struct {
	router runtime.Router
	err    error
	retry  time.Time // earliest time of the next attempt, if err is not nil
}

// networkRetry is the time between attempts to make a node's network.
const networkRetry = time.Minute

func (n *nodeNetworks) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.router != nil {
		n.router.Close()
	}
}

// of returns the network of a node; nil if it was not made yet.
func (n *nodeNetworks) of(node string) *nodeNetwork {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byNode[node]
}

// connect puts a pod into its node's network, once its NetworkPolicies are in force there. It returns an error if they
// are not, and no container may start then. A failure to connect the pod is only reported by an Event: the pod runs
// without a network. A pod that an earlier agent has connected stays connected in any case.
func (r *Runtime) connect(ctx context.Context, pod *corev1.Pod, p *sandbox.Pod) error {
	if p.IP == "" {
		return nil // the pod uses the machine's network
	}
	network := r.openNetwork(pod.Spec.NodeName)
	if network.err != nil {
		return nil // the Node's condition reports it
	}
	if err := protect(ctx, network.router, pod, p.IP); err != nil {
		if !p.Connected() {
			return &runtime.SetUpError{Reason: "NetworkNotReady", Err: fmt.Errorf("network is not ready: %w", err)}
		}
		r.Log.Warn("cannot apply the latest network policies to a pod that is already connected", "pod",
			pod.Namespace+"/"+pod.Name, "err", err)
	}
	if err := p.Connect(ctx, network.router); err != nil {
		r.host.Event(pod, corev1.EventTypeWarning, "NetworkNotReady",
			fmt.Sprintf("The pod is not connected to the node's network: %v", err))
		return nil
	}
	if err := serveHostPorts(network.router, p.IP, hostPorts(pod)); err != nil {
		r.host.Event(pod, corev1.EventTypeWarning, "NetworkNotReady",
			fmt.Sprintf("The pod's host ports are not served: %v", err))
	}
	return nil
}

func protect(ctx context.Context, r runtime.Router, pod *corev1.Pod, ip string) error {
	address, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	return r.Protect(ctx, pod, address)
}

// disconnect removes a pod's host ports. The rest of its network ends with its namespace. It must be called before the
// address is released, because another pod may soon have it.
func (r *Runtime) disconnect(pod *corev1.Pod, ip string) {
	network := r.networks.of(pod.Spec.NodeName)
	if ip == "" || network == nil || network.err != nil {
		return
	}
	if err := serveHostPorts(network.router, ip, nil); err != nil {
		r.Log.Warn("cannot remove host ports of a pod", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}

func serveHostPorts(r runtime.Router, pod string, ports []router.HostPort) error {
	address, err := netip.ParseAddr(pod)
	if err != nil {
		return err
	}
	return r.ServeHostPorts(address, ports)
}

// protocols maps the protocols of ports to their IP protocol numbers.
var protocols = map[corev1.Protocol]uint8{"": unix.IPPROTO_TCP, corev1.ProtocolTCP: unix.IPPROTO_TCP,
	corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP}

// hostPorts returns the host ports of a pod's containers, including sidecars.
func hostPorts(pod *corev1.Pod) (all []router.HostPort) {
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				address, _ := netip.ParseAddr(p.HostIP) // "" is the zero Addr
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

// openNetwork returns a node's network, and makes it if necessary.
func (r *Runtime) openNetwork(node string) *nodeNetwork {
	r.networks.mu.Lock()
	defer r.networks.mu.Unlock()
	previous, now := r.networks.byNode[node], r.Clock.Now()
	if previous != nil && (previous.err == nil || now.Before(previous.retry)) {
		return previous
	}
	network := &nodeNetwork{}
	if network.router, network.err = r.makeNetwork(node); network.err != nil {
		network.retry = now.Add(networkRetry)
		r.Log.Warn("cannot connect pods", "node", node, "err", network.err)
	}
	if r.networks.byNode == nil {
		r.networks.byNode = map[string]*nodeNetwork{}
	}
	r.networks.byNode[node] = network
	if previous == nil || previous.err != network.err {
		r.host.NodeChanged(node)
		if network.err != nil {
			r.host.NodeEvent(node, corev1.EventTypeWarning, "NetworkNotReady",
				"Pods are not connected: "+network.err.Error())
		}
	}
	return network
}

// makeNetwork connects a node to the router, which it opens first if necessary. The name of the node's device is unique
// on this machine, even among several agents. The caller holds networks.mu.
func (r *Runtime) makeNetwork(node string) (runtime.Router, error) {
	if r.networks.router == nil {
		opened, err := r.OpenRouter(sandbox.RouterOf(slices.Collect(maps.Values(shims(r.dir)))), r.networkChanged)
		if err != nil {
			return nil, err
		}
		r.networks.router = opened
	}
	device := "cox" + runtime.Digest(r.dir, node)[:8]
	return r.networks.router, r.networks.router.AddNode(device, r.host.Subnet(node))
}

// networkChanged updates the status of all Nodes with a network.
func (r *Runtime) networkChanged() {
	r.networks.mu.Lock()
	nodes := slices.Collect(maps.Keys(r.networks.byNode))
	r.networks.mu.Unlock()
	for _, node := range nodes {
		r.host.NodeChanged(node)
	}
}

// openRouter opens a router for this machine only.
func openRouter(namespace *os.File, _ func()) (runtime.Router, error) {
	r, err := router.Open(namespace, router.Options{})
	if err != nil {
		return nil, err
	}
	return unprotected{r}, nil
}

// unprotected is a router without NetworkPolicies.
type unprotected struct{ *router.Router }

// Protect implements runtime.Router.
func (unprotected) Protect(context.Context, *corev1.Pod, ...netip.Addr) error { return nil }

// Problem implements runtime.Router.
func (unprotected) Problem() error { return nil }

// Conditions implements runtime.Router.
func (unprotected) Conditions() []corev1.NodeCondition { return nil }

// shims returns the shims of all pods that have a folder below dir.
func shims(dir string) map[types.UID]*sandbox.Pod {
	entries, _ := os.ReadDir(filepath.Join(dir, "pods"))
	all := map[types.UID]*sandbox.Pod{}
	for _, e := range entries {
		uid := types.UID(e.Name())
		all[uid] = sandbox.Adopt(sandbox.Config{Dir: podDir(dir, uid), Memory: podMemory(dir, uid)})
	}
	return all
}

// Conditions returns the NetworkUnavailable condition of a node and the router's own conditions. While a node's network
// is unavailable, only pods that tolerate that are scheduled to it.
func (r *Runtime) Conditions(node string) []corev1.NodeCondition {
	network := r.networks.of(node)
	if network == nil {
		return nil
	}
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "PodsConnected", Message: "pods of this node reach each other and the node",
	}
	if network.err != nil {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "PodsIsolated", "pods reach nobody: "+network.err.Error()
		return []corev1.NodeCondition{c}
	}
	if err := network.router.Problem(); err != nil {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "NetworkNotReady", "no pod starts: "+err.Error()
	}
	return append([]corev1.NodeCondition{c}, network.router.Conditions()...)
}
