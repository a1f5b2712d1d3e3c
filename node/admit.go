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

// refusal is why a pod may not run on the node that it is bound to, which its binder may have got
// wrong: reason and message of its status, in the kubelet's words.
type refusal struct{ reason, message string }

// refusals are what a pod that is bound to a node is asked, in the kubelet's order, before what needs room:
// the first that answers has refused it.
var refusals = []func(a *agent, n *hostedNode, pod *corev1.Pod) *refusal{
	refuseUnderPressure,
	refuseAtShutdown,
	refuseOtherSystem,
	refuseSysctls,
	refuseUnsupported,
}

// admit decides whether a pod that is bound to a node may run there; nil says that it may, and takes the room for it.
func (a *agent) admit(n *hostedNode, pod *corev1.Pod) *refusal {
	for _, ask := range refusals {
		if no := ask(a, n, pod); no != nil {
			return no
		}
	}
	wanted := wantedBy(pod)
	if no := a.takeRoom(n, pod, wanted); no != nil {
		return no
	}
	if no := a.misplaced(n, pod); no != nil {
		a.releaseRoom(n, pod.UID)
		return no
	}
	return nil
}

// refuseUnderPressure keeps pods away from a node that is short of something: with memory those that ask for
// none, otherwise all but critical ones.
func refuseUnderPressure(a *agent, n *hostedNode, pod *corev1.Pod) *refusal {
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
	return &refusal{"Evicted", fmt.Sprintf("The node had condition: %v. ", conditions)}
}

func tolerates(pod *corev1.Pod, taint *corev1.Taint) bool {
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), []corev1.Taint{*taint},
		pod.Spec.Tolerations, nil, true)
	return !untolerated
}

func refuseAtShutdown(a *agent, _ *hostedNode, _ *corev1.Pod) *refusal {
	if a.shuttingDown.Load() {
		return &refusal{"NodeShutdown", "Pod was rejected as the node is shutting down."}
	}
	return nil
}

func refuseOtherSystem(_ *agent, _ *hostedNode, pod *corev1.Pod) *refusal {
	if os, ok := pod.Labels[corev1.LabelOSStable]; ok && os != string(corev1.Linux) {
		return &refusal{"PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux {
		return &refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// refuseUnsupported keeps pods away whose spec the runtime cannot honour.
func refuseUnsupported(a *agent, _ *hostedNode, pod *corev1.Pod) *refusal {
	if runtime, ok := a.runtime.(runtime.Admission); ok {
		if why := runtime.Unsupported(pod); why != "" {
			return &refusal{"PodFeatureUnsupported", why}
		}
	}
	return nil
}

// takeRoom takes what the pod asks for.
func (a *agent) takeRoom(n *hostedNode, pod *corev1.Pod, wanted *wanted) *refusal {
	capacity := a.capacityFor(n, wanted)
	if n.account.take(pod.UID, wanted, capacity) {
		return nil
	}
	// A pod may have ended whose end has not been processed yet: count those that are there.
	used := map[corev1.ResourceName]int64{}
	portTaken := false
	for _, other := range a.podsOf(n) {
		if other.UID == pod.UID || phaseEnded(other.Status.Phase) || other.Status.StartTime == nil {
			continue
		}
		for name, n := range requests(podstate.Allocated(other)) {
			used[name] += n
		}
		portTaken = portTaken || wanted.ports.conflict(hostPortsOf(other))
	}
	s := lacking(wanted.requests, used, capacity)
	switch {
	case s == nil && portTaken:
		return failedPredicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
	case s == nil:
		n.account.note(pod.UID, wanted)
		return nil
	}
	return &refusal{"OutOf" + string(s.resource),
		fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.resource, s.requested, s.used, s.capacity)}
}

// capacityFor is what a node has for a pod: with extended resources, also what others have put into its status.
func (a *agent) capacityFor(n *hostedNode, w *wanted) corev1.ResourceList {
	capacity := a.allocatable
	for name := range w.requests {
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

func failedPredicate(name, why string) *refusal {
	return &refusal{name, "Predicate " + name + " failed: " + why}
}

// misplaced asks of the node's labels and taints what the scheduler would have asked.
func (a *agent) misplaced(n *hostedNode, pod *corev1.Pod) *refusal {
	node, err := n.link.nodes.Get(n.name)
	if err != nil {
		return nil // it is being registered
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

// wanted is what a pod asks of a node.
type wanted struct {
	requests map[corev1.ResourceName]int64
	ports    hostPorts
}

func wantedBy(pod *corev1.Pod) *wanted { return &wanted{requests(pod), hostPortsOf(pod)} }

// hostPort is a port of the node that a pod wants for itself.
type hostPort struct {
	ip       string // "" is all
	protocol corev1.Protocol
	port     int32
}

// somewhere stands for the port on whichever addresses.
const somewhere = "*"

// hostPorts are ports of the node, each also somewhere.
type hostPorts map[hostPort]bool

// conflict reports that both have a port. It takes as long as the ports are many, not as their pairs.
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

// hostPortsOf are those of containers that run as long as the pod.
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

// account is what the pods of a node ask for. It is safe for concurrent use.
type account struct {
	mu    sync.Mutex
	total map[corev1.ResourceName]int64
	byPod map[types.UID]*wanted
	// deferred are the pods whose resize waits for room.
	deferred map[types.UID]runtime.PodKey
}

// requests are what a pod asks for, in thousandths of a core and in units of everything else.
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

// take notes what a pod asks for, if there is room.
func (a *account) take(uid types.UID, w *wanted, capacity corev1.ResourceList) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byPod[uid] != nil {
		return true
	}
	if lacking(w.requests, a.total, capacity) != nil {
		return false
	}
	if len(w.ports) > 0 {
		for _, other := range a.byPod {
			if w.ports.conflict(other.ports) {
				return false
			}
		}
	}
	a.add(uid, w)
	return true
}

// note is take of a pod that is there in any case.
func (a *account) note(uid types.UID, wanted *wanted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byPod[uid] == nil {
		a.add(uid, wanted)
	}
}

func (a *account) add(uid types.UID, w *wanted) {
	if a.byPod == nil {
		a.byPod, a.total = map[types.UID]*wanted{}, map[corev1.ResourceName]int64{}
	}
	a.byPod[uid] = w
	for name, n := range w.requests {
		a.total[name] += n
	}
}

// release takes a pod that has ended off the account, and reports whether it was on it.
func (a *account) release(uid types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.deferred, uid)
	return a.remove(uid)
}

func (a *account) remove(uid types.UID) bool {
	w := a.byPod[uid]
	if w == nil {
		return false
	}
	for name, n := range w.requests {
		a.total[name] -= n
	}
	delete(a.byPod, uid)
	return true
}

// shortage is what there is too little of.
type shortage struct {
	resource                  corev1.ResourceName
	requested, used, capacity int64
}

// lacking is the first resource, by name, of which a node has too little. An extended resource that no node
// knows is the cluster's: the scheduler and its extenders have seen to it.
func lacking(wanted, used map[corev1.ResourceName]int64, capacity corev1.ResourceList) *shortage {
	names := make([]corev1.ResourceName, 0, len(wanted))
	for name := range wanted {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !has(capacity, name) && isExtended(name) {
			continue
		}
		q := capacity[name]
		most := amount.Of(q, 0)
		if name == corev1.ResourceCPU {
			most = amount.Of(q, resource.Milli)
		}
		if n := wanted[name]; n > 0 && used[name]+n > most {
			return &shortage{name, n, used[name], most}
		}
	}
	return nil
}
