package node

import (
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// healthy are the conditions of a healthy node, in the kubelet's words and order.
var healthy = []corev1.NodeCondition{
	{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory",
		Message: "kubelet has sufficient memory available"},
	{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure",
		Message: "kubelet has no disk pressure"},
	{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID",
		Message: "kubelet has sufficient PID available"},
	{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status"},
}

// short are the conditions of a node under pressure.
var short = map[corev1.NodeConditionType]corev1.NodeCondition{
	corev1.NodeMemoryPressure: {Reason: "KubeletHasInsufficientMemory",
		Message: "kubelet has insufficient memory available"},
	corev1.NodeDiskPressure: {Reason: "KubeletHasDiskPressure", Message: "kubelet has disk pressure"},
	corev1.NodePIDPressure:  {Reason: "KubeletHasInsufficientPID", Message: "kubelet has insufficient PID available"},
}

// conditions returns the present conditions of a node.
func (a *agent) conditions(n *hostedNode) []corev1.NodeCondition {
	all := slices.Clone(healthy)
	if m, ok := a.runtime.(runtime.Machine); ok {
		all = append(m.Conditions(n.name), all...)
	}
	pressed := n.pressure.now()
	for i := range all {
		c := &all[i]
		switch {
		case slices.Contains(pressed, c.Type):
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, short[c.Type].Reason, short[c.Type].Message
		case c.Type == corev1.NodeReady && a.shuttingDown.Load():
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, "KubeletNotReady", "node is shutting down"
		}
	}
	return all
}

// labels returns the labels that the kubelet sets on its node.
func (a *agent) labels(name string) map[string]string {
	return map[string]string{
		corev1.LabelHostname:      name,
		corev1.LabelOSStable:      "linux",
		corev1.LabelArchStable:    goruntime.GOARCH,
		"beta.kubernetes.io/os":   "linux",
		"beta.kubernetes.io/arch": goruntime.GOARCH,
	}
}

// declaredFeatures are features that not every kubelet has: WebSockets reach the agent as they are. (KEP-5328)
var declaredFeatures = []string{"ExtendWebSocketsToKubelet"}

// nodeStatus returns the old status updated with the agent's part, without changing the parts of other clients. A
// condition keeps its transition time while its status is the same.
func (a *agent) nodeStatus(n *hostedNode, old *corev1.NodeStatus, now time.Time) corev1.NodeStatus {
	status := *old.DeepCopy()
	setResources(&status, a.Capacity, a.allocatable)
	status.Addresses = a.addressesOf(n.name, n.subnet())
	status.DaemonEndpoints.KubeletEndpoint.Port = a.port
	status.DeclaredFeatures = declaredFeatures
	status.NodeInfo = corev1.NodeSystemInfo{
		MachineID:               n.machineID,
		SystemUUID:              n.machineID,
		BootID:                  n.machineID,
		KernelVersion:           "simulated",
		OSImage:                 "Coxswain simulated node",
		OperatingSystem:         "linux",
		Architecture:            goruntime.GOARCH,
		ContainerRuntimeVersion: a.runtime.Version(),
		KubeletVersion:          kubeversion.Coxswain,
	}
	if m, ok := a.runtime.(runtime.Machine); ok {
		m.Describe(&status.NodeInfo)
	}
	conditions := a.conditions(n)
	status.Conditions = dropEnded(status.Conditions, conditions)
	for _, condition := range conditions {
		condition.LastHeartbeatTime, condition.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		status.Conditions = setNodeCondition(status.Conditions, condition)
	}
	return status
}

// setResources updates capacity and allocatable with the agent's own resources, and keeps those that other clients have
// added, as the kubelet does. Resources that are in the capacity and not reserved are allocatable. An extended resource
// that is not in the capacity is not allocatable.
func setResources(status *corev1.NodeStatus, own, ownAllocatable corev1.ResourceList) {
	capacity, allocatable := corev1.ResourceList{}, corev1.ResourceList{}
	maps.Copy(capacity, status.Capacity)
	maps.Copy(capacity, own)
	for name, quantity := range status.Allocatable {
		if !isExtended(name) {
			allocatable[name] = quantity
		}
	}
	maps.Copy(allocatable, capacity)
	maps.Copy(allocatable, ownAllocatable)
	status.Capacity, status.Allocatable = capacity, allocatable
}

// isExtended reports whether a resource is not one of Kubernetes' own, by the form of its name.
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// nodeConditions is the prefix of conditions that only this agent writes, such as coxswain.dev/DNSReady.
const nodeConditions = "coxswain.dev/"

// dropEnded removes the agent's own conditions that an earlier agent has reported and this one does not, because its
// runtime or its flags have changed. Otherwise controllers would act on them forever.
func dropEnded(old, reported []corev1.NodeCondition) []corev1.NodeCondition {
	return slices.DeleteFunc(old, func(c corev1.NodeCondition) bool {
		return strings.HasPrefix(string(c.Type), nodeConditions) &&
			!slices.ContainsFunc(reported, func(r corev1.NodeCondition) bool { return r.Type == c.Type })
	})
}

func setNodeCondition(conditions []corev1.NodeCondition, c corev1.NodeCondition) []corev1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type != c.Type {
			continue
		}
		if conditions[i].Status == c.Status {
			c.LastTransitionTime = conditions[i].LastTransitionTime
		}
		conditions[i] = c
		return conditions
	}
	return append(conditions, c)
}

// sameButForHeartbeat reports whether two statuses differ in heartbeat times only.
func sameButForHeartbeat(a, b *corev1.NodeStatus) bool {
	if len(a.Conditions) != len(b.Conditions) {
		return false
	}
	for i := range a.Conditions {
		x, y := a.Conditions[i], b.Conditions[i]
		x.LastHeartbeatTime = y.LastHeartbeatTime
		if x != y {
			return false
		}
	}
	return equality.Semantic.DeepEqual(a.Capacity, b.Capacity) &&
		equality.Semantic.DeepEqual(a.Allocatable, b.Allocatable) &&
		equality.Semantic.DeepEqual(a.Addresses, b.Addresses) && equality.Semantic.DeepEqual(a.NodeInfo, b.NodeInfo) &&
		a.DaemonEndpoints == b.DaemonEndpoints && slices.Equal(a.DeclaredFeatures, b.DeclaredFeatures)
}
