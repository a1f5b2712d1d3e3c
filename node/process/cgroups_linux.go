package process

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	podresource "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/process/sandbox"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// The cgroups of an agent's pods are laid out like the kubelet's below kubepods:
//
//	coxswain/AGENT                      all pods: the machine's resources without the reserved ones
//	coxswain/AGENT/podUID               a pod of the QoS class Guaranteed
//	coxswain/AGENT/burstable/podUID     … Burstable; the class has the CPU that its pods request
//	coxswain/AGENT/besteffort/podUID    … BestEffort; the class has the CPU that others leave
//
// A container's cgroup is directly below its pod's. A pod's limits are those of its spec, or the sum of its containers'
// limits if each of them has one.

// classFolders maps a QoS class to the folder of its pods.
var classFolders = map[corev1.PodQOSClass]string{
	corev1.PodQOSGuaranteed: "", corev1.PodQOSBurstable: "/burstable", corev1.PodQOSBestEffort: "/besteffort",
}

// cgroupOf returns the cgroup of all pods of the agent with the DataDir dir.
func cgroupOf(dir string) string { return "coxswain/" + runtime.Digest(dir)[:12] }

func podCgroup(root string, pod *corev1.Pod) string {
	return root + classFolders[qos.GetPodQOS(pod)] + "/pod" + string(pod.UID)
}

// podCgroups returns the cgroups that a pod may have: one for each QoS class.
func podCgroups(root string, uid types.UID) []string {
	var all []string
	for _, folder := range classFolders {
		all = append(all, root+folder+"/pod"+string(uid))
	}
	return all
}

// leastShares are the CPU shares of a cgroup that gets only idle CPU time.
const leastShares = 2

// podLimits returns the limits of a whole pod, from its own resources and its containers'.
func podLimits(pod *corev1.Pod) sandbox.Limits {
	resources := corev1.ResourceRequirements{
		Requests: podresource.PodRequests(pod, podresource.PodResourcesOptions{}),
		Limits:   podresource.PodLimits(pod, podresource.PodResourcesOptions{}),
	}
	maps.DeleteFunc(resources.Limits, func(name corev1.ResourceName, _ resource.Quantity) bool {
		if pod.Spec.Resources != nil {
			if _, ok := pod.Spec.Resources.Limits[name]; ok {
				return false
			}
		}
		return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers),
			func(c corev1.Container) bool {
				_, ok := c.Resources.Limits[name]
				return !ok
			})
	})
	l := limits(&resources)
	l.MemoryMin = 0 // memory is guaranteed to containers, not to the pod as a whole
	return l
}

// note records a container's present resources, which a resize may change after the pod was set up.
func (p *livePod) note(c *corev1.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resources == nil {
		p.resources = map[string]corev1.ResourceRequirements{}
	}
	p.resources[c.Name] = c.Resources
}

// limits returns the limits of the whole pod with its containers' present resources.
func (p *livePod) limits() sandbox.Limits {
	pod := p.env.Pod.DeepCopy()
	p.mu.Lock()
	for _, c := range runtime.Containers(pod) {
		if now, ok := p.resources[c.Name]; ok {
			c.Resources = now
		}
	}
	p.mu.Unlock()
	return podLimits(pod)
}

// shareMachine limits all pods together to the resources that are not reserved, and updates the CPU shares of the QoS
// classes.
func (r *Runtime) shareMachine() {
	r.mu.Lock()
	burstable := int64(0)
	for _, p := range r.pods {
		if qos.GetPodQOS(p.env.Pod) == corev1.PodQOSBurstable {
			burstable += p.limits().CPUShares
		}
	}
	r.mu.Unlock()
	all := limits(&corev1.ResourceRequirements{Requests: r.Allocatable})
	all.MemoryMin = 0
	if reserved := r.Reserved[corev1.ResourceMemory]; !reserved.IsZero() {
		all.MemoryBytes = amount.Of(r.Allocatable[corev1.ResourceMemory], 0)
	}
	for folder, limits := range map[string]sandbox.Limits{"": all,
		classFolders[corev1.PodQOSBurstable]:  {CPUShares: max(leastShares, min(burstable, maxShares))},
		classFolders[corev1.PodQOSBestEffort]: {CPUShares: leastShares}} {
		if err := sandbox.Group(r.cgroup+folder, limits); err != nil {
			r.Log.Warn("cannot update a cgroup of pods", "cgroup", r.cgroup+folder, "err", err)
		}
	}
}

// oom_score_adj of containers, as in the kubelet.
const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// oomScore returns a container's oom_score_adj on a machine with capacity bytes of memory: the more memory it requests,
// the later the kernel kills it when the machine runs out of memory (the kubelet's policy.go).
func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int32 {
	switch class := qos.GetPodQOS(pod); {
	case pod.Spec.PriorityClassName == systemNodeCritical, class == corev1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case class == corev1.PodQOSBestEffort || capacity <= 0:
		return bestEffortOOMScore
	}
	memory := func(list corev1.ResourceList) int64 { return amount.Of(list[corev1.ResourceMemory], 0) }
	requested := memory(c.Resources.Requests)
	if pod.Spec.Resources != nil { // containers share the part of the pod's request that none of them claims
		all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
		rest := memory(pod.Spec.Resources.Requests)
		for i := range all {
			rest -= memory(all[i].Resources.Requests)
		}
		requested += max(0, rest) / int64(max(1, len(all)))
	}
	score := 1000 - int64(1000*(float64(min(requested, capacity))/float64(capacity)))
	return int32(amount.Within(score, 1000+guaranteedOOMScore, bestEffortOOMScore-1))
}

const systemNodeCritical = "system-node-critical"
