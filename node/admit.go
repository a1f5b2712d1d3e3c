package node

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	podresource "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/podstate"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// rejection is the reason why a pod may not run on the node that it is bound to: reason and message of the pod's
// status, in the kubelet's words. A pod's binder may have been wrong.
type rejection struct{ reason, message string }

// admitHandlers are the checks of a pod that is bound to a node, in the kubelet's order. They come before the check for
// resources. The first check that returns a rejection decides.
var admitHandlers = []func(a *agent, n *hostedNode, pod *corev1.Pod) *rejection{
	rejectUnderPressure,
	rejectAtShutdown,
	rejectOtherSystem,
	rejectSysctls,
	rejectUnsupported,
}

// admit decides whether a pod that is bound to a node may run there. If it may, admit reserves its resources and
// returns nil.
func (a *agent) admit(n *hostedNode, pod *corev1.Pod) *rejection {
	for _, check := range admitHandlers {
		if rejection := check(a, n, pod); rejection != nil {
			return rejection
		}
	}
	d := demandOf(pod)
	if rejection := a.takeRoom(n, pod, d); rejection != nil {
		return rejection
	}
	if rejection := a.misplaced(n, pod); rejection != nil {
		a.releaseRoom(n, pod.UID)
		return rejection
	}
	return nil
}

// rejectUnderPressure keeps pods off a node under pressure, except critical ones. If memory pressure is the only
// condition, it rejects only pods of the class BestEffort that do not tolerate its taint.
func rejectUnderPressure(a *agent, n *hostedNode, pod *corev1.Pod) *rejection {
	conditions := n.pressure.now()
	if len(conditions) == 0 || a.critical(pod) {
		return nil
	}
	if len(conditions) == 1 && conditions[0] == corev1.NodeMemoryPressure {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if qos.GetPodQOS(pod) != corev1.PodQOSBestEffort || tolerates(pod, &taint) {
			return nil
		}
	}
	return &rejection{"Evicted", fmt.Sprintf("The node had condition: %v. ", conditions)}
}

func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), []corev1.Taint{*taint},
		pod.Spec.Tolerations, nil, true)
	return !untolerated
}

func rejectAtShutdown(a *agent, _ *hostedNode, _ *corev1.Pod) *rejection {
	if a.shuttingDown.Load() {
		return &rejection{"NodeShutdown", "Pod was rejected as the node is shutting down."}
	}
	return nil
}

func rejectOtherSystem(_ *agent, _ *hostedNode, pod *corev1.Pod) *rejection {
	if os, ok := pod.Labels[corev1.LabelOSStable]; ok && os != string(corev1.Linux) {
		return &rejection{"PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return &rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// rejectUnsupported keeps pods off a node if the runtime cannot honour their spec.
func rejectUnsupported(a *agent, _ *hostedNode, pod *corev1.Pod) *rejection {
	if runtime, ok := a.runtimeOf(pod).(runtime.Admission); ok {
		if reason := runtime.Unsupported(pod); reason != "" {
			return &rejection{"PodFeatureUnsupported", reason}
		}
	}
	return nil
}

// takeRoom reserves the resources and ports that a pod asks for.
func (a *agent) takeRoom(n *hostedNode, pod *corev1.Pod, d *demand) *rejection {
	capacity := a.capacityFor(n, d)
	if n.account.take(pod.UID, d, capacity) {
		return nil
	}
	// The account may include ended pods that were not processed yet: count the others only.
	used := map[corev1.ResourceName]int64{}
	portTaken := false
	for _, other := range a.podsOf(n) {
		if other.UID == pod.UID || phaseEnded(other.Status.Phase) || other.Status.StartTime == nil {
			continue
		}
		for name, n := range requests(podstate.Allocated(other)) {
			used[name] += n
		}
		portTaken = portTaken || d.ports.conflict(hostPortsOf(other))
	}
	s := lacking(d.requests, used, capacity)
	switch {
	case s == nil && portTaken:
		return failedPredicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	case s == nil:
		n.account.note(pod.UID, d)
		return nil
	}
	return &rejection{"OutOf" + string(s.resource),
		fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.resource, s.requested, s.used, s.capacity)}
}

// capacityFor returns a node's allocatable resources for a pod. If the pod asks for extended resources, these include
// the ones that other clients have added to the Node's status.
func (a *agent) capacityFor(n *hostedNode, d *demand) corev1.ResourceList {
	capacity := a.allocatable
	for name := range d.requests {
		if has(a.allocatable, name) || !isExtended(name) {
			continue
		}
		if node, err := n.link.nodes.Get(n.name); err == nil {
			capacity = maps.Clone(a.allocatable)
			for name, quantity := range node.Status.Allocatable {
				if isExtended(name) && !has(a.allocatable, name) {
					capacity[name] = quantity
				}
			}
		}
		break
	}
	return capacity
}

func has(list corev1.ResourceList, name corev1.ResourceName) bool {
	_, ok := list[name]
	return ok
}

func failedPredicate(name, reason string) *rejection {
	return &rejection{name, "Predicate " + name + " failed: " + reason}
}

// misplaced checks the node's labels and taints like the scheduler.
func (a *agent) misplaced(n *hostedNode, pod *corev1.Pod) *rejection {
	node, err := n.link.nodes.Get(n.name)
	if err != nil {
		return nil // the Node is being registered
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !fits {
		return failedPredicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if a.isStatic(pod) {
		return nil
	}
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectNoExecute && !tolerates(pod, taint) {
			return failedPredicate("TaintToleration", "node(s) had untolerated taint(s)")
		}
	}
	return nil
}

// demand is the resources and ports that a pod asks for.
type demand struct {
	requests map[corev1.ResourceName]int64
	ports    hostPorts
}

func demandOf(pod *corev1.Pod) *demand { return &demand{requests(pod), hostPortsOf(pod)} }

// hostPort is a port of the node that a pod asks for.
type hostPort struct {
	ip       string // "" is every address
	protocol corev1.Protocol
	port     int32
}

// somewhere is the ip of an entry for a port on at least one address.
const somewhere = "*"

// hostPorts are ports of the node. Each port has an additional entry with the ip somewhere.
type hostPorts map[hostPort]bool

// conflict reports whether a port is in both sets. Its time grows with the number of ports, not of pairs.
func (w hostPorts) conflict(taken hostPorts) bool {
	for p := range w {
		switch p.ip {
		case somewhere:
		case "":
			if taken[hostPort{somewhere, p.protocol, p.port}] {
				return true
			}
		default:
			if taken[p] || taken[hostPort{"", p.protocol, p.port}] {
				return true
			}
		}
	}
	return false
}

// hostPortsOf returns the ports of the containers that run as long as the pod: regular ones and sidecars.
func hostPortsOf(pod *corev1.Pod) hostPorts {
	var all hostPorts
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			one := hostPort{p.HostIP, p.Protocol, p.HostPort}
			if one.protocol == "" {
				one.protocol = corev1.ProtocolTCP
			}
			if one.ip == "0.0.0.0" {
				one.ip = ""
			}
			if all == nil {
				all = hostPorts{}
			}
			all[one], all[hostPort{somewhere, one.protocol, one.port}] = true, true
		}
	}
	for i := range pod.Spec.InitContainers {
		if runtime.IsSidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return all
}

// account is the sum of the demands of a node's pods. It is safe for concurrent use.
type account struct {
	mu    sync.Mutex // guards the fields below
	total map[corev1.ResourceName]int64
	byPod map[types.UID]*demand
	// deferred are the pods that wait for room for a resize.
	deferred map[types.UID]runtime.PodKey
}

// requests returns a pod's requests, in thousandths of a core and in units of everything else.
func requests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	list := podresource.PodRequests(pod, podresource.PodResourcesOptions{})
	all := make(map[corev1.ResourceName]int64, len(list)+1)
	for name, q := range list {
		if all[name] = amount.Of(q, 0); name == corev1.ResourceCPU {
			all[name] = amount.Of(q, resource.Milli)
		}
	}
	all[corev1.ResourcePods] = 1
	return all
}

// take adds a pod's demand, if there is room for it.
func (a *account) take(uid types.UID, d *demand, capacity corev1.ResourceList) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byPod[uid] != nil {
		return true
	}
	if lacking(d.requests, a.total, capacity) != nil {
		return false
	}
	if len(d.ports) > 0 {
		for _, other := range a.byPod {
			if d.ports.conflict(other.ports) {
				return false
			}
		}
	}
	a.add(uid, d)
	return true
}

// note adds a pod's demand without checking for room.
func (a *account) note(uid types.UID, d *demand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byPod[uid] == nil {
		a.add(uid, d)
	}
}

// add adds a pod's demand. The caller holds mu.
func (a *account) add(uid types.UID, d *demand) {
	if a.byPod == nil {
		a.byPod, a.total = map[types.UID]*demand{}, map[corev1.ResourceName]int64{}
	}
	a.byPod[uid] = d
	for name, n := range d.requests {
		a.total[name] += n
	}
}

// release removes a pod that has ended, and reports whether it was included.
func (a *account) release(uid types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.deferred, uid)
	return a.remove(uid)
}

// remove removes a pod's demand. The caller holds mu.
func (a *account) remove(uid types.UID) bool {
	d := a.byPod[uid]
	if d == nil {
		return false
	}
	for name, n := range d.requests {
		a.total[name] -= n
	}
	delete(a.byPod, uid)
	return true
}

// shortage is a resource that a node has too little of.
type shortage struct {
	resource                  corev1.ResourceName
	requested, used, capacity int64
}

// lacking returns the first resource, by name, that does not suffice for requested; nil if all do. It skips extended
// resources that the node does not have: these belong to the cluster, and the scheduler's extenders check them.
func lacking(requested, used map[corev1.ResourceName]int64, capacity corev1.ResourceList) *shortage {
	names := make([]corev1.ResourceName, 0, len(requested))
	for name := range requested {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !has(capacity, name) && isExtended(name) {
			continue
		}
		q := capacity[name]
		limit := amount.Of(q, 0)
		if name == corev1.ResourceCPU {
			limit = amount.Of(q, resource.Milli)
		}
		if n := requested[name]; n > 0 && used[name]+n > limit {
			return &shortage{name, n, used[name], limit}
		}
	}
	return nil
}
