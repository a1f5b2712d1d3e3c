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

// connect puts a pod into its node's network, once its policies are in force there. An error means that they are not,
// and that no container may start. A pod that cannot be connected still has what it has of itself, and one that an
// earlier agent has connected keeps what it has.
func (r *Runtime) connect(ctx context.Context, pod *corev1.Pod, p *sandbox.Pod) error {
	if p.IP == "" {
		return nil // it has the machine's
	}
	network := r.openNetwork(pod.Spec.NodeName)
	if network.err != nil {
		return nil // the Node says so
	}
	if err := protect(ctx, network.router, pod, p.IP); err != nil {
		if !p.Connected() {
			return &runtime.SetUpError{Reason: "NetworkNotReady", Err: fmt.Errorf("network is not ready: %w", err)}
		}
		r.Log.Warn("a pod that is connected already goes on without its latest network policies", "pod",
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
		made, err := r.OpenRouter(sandbox.RouterOf(slices.Collect(maps.Values(shims(r.dir)))), r.networkChanged)
		if err != nil {
			return nil, err
		}
		r.networks.router = made
	}
	device := "cox" + runtime.Digest(r.dir, node)[:8]
	return r.networks.router, r.networks.router.AddNode(device, r.host.Subnet(node))
}

// networkChanged has the Nodes say how the network is.
func (r *Runtime) networkChanged() {
	r.networks.mu.Lock()
	nodes := slices.Collect(maps.Keys(r.networks.byNode))
	r.networks.mu.Unlock()
	for _, node := range nodes {
		r.host.NodeChanged(node)
	}
}

// openRouter opens a router of this machine alone.
func openRouter(namespace *os.File, _ func()) (runtime.Router, error) {
	r, err := router.Open(namespace, router.Options{})
	if err != nil {
		return nil, err
	}
	return unprotected{r}, nil
}

// unprotected is a router whose pods have no NetworkPolicies.
type unprotected struct{ *router.Router }

// Protect implements runtime.Router.
func (unprotected) Protect(context.Context, *corev1.Pod, ...netip.Addr) error { return nil }

// Problem implements runtime.Router.
func (unprotected) Problem() error { return nil }

// Conditions implements runtime.Router.
func (unprotected) Conditions() []corev1.NodeCondition { return nil }

// shims are those of all pods that there are folders of in an agent's.
func shims(dir string) map[types.UID]*sandbox.Pod {
	entries, _ := os.ReadDir(filepath.Join(dir, "pods"))
	all := map[types.UID]*sandbox.Pod{}
	for _, e := range entries {
		uid := types.UID(e.Name())
		all[uid] = sandbox.Adopt(sandbox.Config{Dir: podDir(dir, uid)})
	}
	return all
}

// Conditions are what the runtime has to report about a node. While its network is unavailable no more pods are sent to
// it, except those that tolerate that.
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
