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

// The cgroups of an agent's pods are those of the kubelet below kubepods:
//
//	coxswain/AGENT                      all pods: what the machine has, without what is reserved
//	coxswain/AGENT/podUID               a pod of the class Guaranteed
//	coxswain/AGENT/burstable/podUID     … Burstable, which together have the CPU that they request
//	coxswain/AGENT/besteffort/podUID    … BestEffort, which have what others leave
//
// and a container's is right below its pod's. A pod's limits are those of its spec, or what the limits of its
// containers come to where all have one.

// classFolders are where the pods of each class are.
var classFolders = map[corev1.PodQOSClass]string{
	corev1.PodQOSGuaranteed: "", corev1.PodQOSBurstable: "/burstable", corev1.PodQOSBestEffort: "/besteffort",
}

// cgroupOf is that of the pods of an agent with this folder.
func cgroupOf(dir string) string { return "coxswain/" + runtime.Digest(dir)[:12] }

func podCgroup(root string, pod *corev1.Pod) string {
	return root + classFolders[qos.GetPodQOS(pod)] + "/pod" + string(pod.UID)
}

// podCgroups are where a pod's cgroup may be, whatever its class.
func podCgroups(root string, uid types.UID) []string {
	var all []string
	for _, folder := range classFolders {
		all = append(all, root+folder+"/pod"+string(uid))
	}
	return all
}

// leastShares are those of what gets CPU only where nothing else wants it.
const leastShares = 2

// podLimits are what a pod may take in all, by its own resources and its containers'.
func podLimits(pod *corev1.Pod) sandbox.Limits {
	of := corev1.ResourceRequirements{
		Requests: podresource.PodRequests(pod, podresource.PodResourcesOptions{}),
		Limits:   podresource.PodLimits(pod, podresource.PodResourcesOptions{}),
	}
	maps.DeleteFunc(of.Limits, func(name corev1.ResourceName, _ resource.Quantity) bool {
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
	l := limits(&of)
	l.MemoryMin = 0 // each container has its own
	return l
}

// note keeps what a container has now, which a resize makes different from the spec that the pod was set up with.
func (p *livePod) note(c *corev1.Container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resources == nil {
		p.resources = map[string]corev1.ResourceRequirements{}
	}
	p.resources[c.Name] = c.Resources
}

// limits are what the pod may take in all as its containers are now.
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

// shareMachine gives all pods together what is not reserved, and the classes their part of the CPU.
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
			r.Log.Warn("cgroup of the pods", "cgroup", r.cgroup+folder, "err", err)
		}
	}
}

// The kubelet's oom_score_adj of containers.
const (
	guaranteedOOMScore = -997
	bestEffortOOMScore = 1000
)

// oomScore is how soon the kernel kills a container for want of memory on the machine, of which there are so many
// bytes: the more it asks for, the later (the kubelet's policy.go).
func oomScore(pod *corev1.Pod, c *corev1.Container, capacity int64) int32 {
	switch class := qos.GetPodQOS(pod); {
	case pod.Spec.PriorityClassName == systemNodeCritical, class == corev1.PodQOSGuaranteed:
		return guaranteedOOMScore
	case class == corev1.PodQOSBestEffort || capacity <= 0:
		return bestEffortOOMScore
	}
	memory := func(list corev1.ResourceList) int64 { return amount.Of(list[corev1.ResourceMemory], 0) }
	requested := memory(c.Resources.Requests)
	if pod.Spec.Resources != nil { // what no container asks for by itself is all containers'
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
