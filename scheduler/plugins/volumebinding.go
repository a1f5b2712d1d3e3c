package plugins

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// VolumeBinding keeps a pod to the nodes that can reach its volumes. Claims that are bound have a
// volume with a node affinity. Claims of a class with WaitForFirstConsumer have none yet: for each node
// it looks for volumes that match them, or checks whether one could be provisioned there; when the node
// is chosen, PreBind binds the volumes or requests the provisioning, and waits for it
// (volumebinding_bind.go).
type VolumeBinding struct {
	h          framework.Handle
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	capacities storagelisters.CSIStorageCapacityLister
	timeout    time.Duration

	// Choices of pods in their binding cycle that the informers may not show yet. mu guards them. taken maps a
	// volume's name to its claim, claimed a claim to its node.
	mu      sync.Mutex
	taken   map[string]string
	claimed map[string]string
}

const volumeBindingKey = "VolumeBinding/state"

func volumeStatus(reasons ...string) *framework.Status {
	return framework.NewStatus("VolumeBinding", framework.UnschedulableAndUnresolvable, reasons...)
}

var (
	immediateUnbound  = volumeStatus("pod has unbound immediate PersistentVolumeClaims")
	volumeNotHere     = volumeStatus("node(s) didn't match PersistentVolume's node affinity")
	volumeMissing     = volumeStatus("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
	noVolumeToBind    = volumeStatus("node(s) didn't find available persistent volumes to bind")
	notEnoughCapacity = volumeStatus("node(s) did not have enough free storage")
)

func newVolumeBinding(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	var a configv1.VolumeBindingArgs
	if err := args.Decode(&a); err != nil {
		return nil, err
	}
	seconds := ptr.Deref(a.BindTimeoutSeconds, 600)
	if seconds < 0 {
		return nil, field.Invalid(args.Path.Child("bindTimeoutSeconds"), seconds,
			"invalid BindTimeoutSeconds, should not be a negative value")
	}
	if len(a.Shape) > 0 {
		return nil, field.Forbidden(args.Path.Child("shape"), "scoring by storage capacity is not supported")
	}
	core, storage := h.Informers().Core().V1(), h.Informers().Storage().V1()
	return &VolumeBinding{
		h: h, claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: storage.StorageClasses().Lister(), drivers: storage.CSIDrivers().Lister(),
		capacities: storage.CSIStorageCapacities().Lister(),
		timeout:    time.Duration(seconds) * time.Second, taken: map[string]string{}, claimed: map[string]string{},
	}, nil
}

// Name implements framework.Plugin.
func (*VolumeBinding) Name() string { return "VolumeBinding" }

// volumeState holds the results of PreFilter for the pod's claims, and the results of Filter for each node.
type volumeState struct {
	bound, delayed []*corev1.PersistentVolumeClaim
	volumes        []*corev1.PersistentVolume // candidates for the delayed claims; nil if there are none

	mu    sync.Mutex
	plans map[string]*volumePlan // by node
}

// volumePlan lists the bindings and provisionings for the delayed claims on one node.
type volumePlan struct {
	bind      map[string]*corev1.PersistentVolume // by claim key
	provision []*corev1.PersistentVolumeClaim
}

func claimKey(c *corev1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }

// PreFilter implements framework.PreFilterPlugin.
func (p *VolumeBinding) PreFilter(state *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	if len(pod.Claims) == 0 {
		return nil, skip
	}
	s := &volumeState{plans: map[string]*volumePlan{}}
	for i := range pod.Pod.Spec.Volumes {
		claim, status := p.claimOf(pod.Pod, &pod.Pod.Spec.Volumes[i])
		switch {
		case !status.OK():
			return nil, status
		case claim == nil:
		case isBound(claim):
			s.bound = append(s.bound, claim)
		case p.isDelayed(claim):
			s.delayed = append(s.delayed, claim)
		default:
			return nil, immediateUnbound
		}
	}
	if len(s.delayed) > 0 {
		s.volumes, _ = p.volumes.List(labels.Everything()) // a lister has no errors
	}
	state.Write(volumeBindingKey, s)
	return nil, nil
}

// claimOf returns the claim of a volume; nil if it has none.
func (p *VolumeBinding) claimOf(pod *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolumeClaim, *framework.Status) {
	name := framework.ClaimName(pod, v)
	if name == "" {
		return nil, nil
	}
	claim, err := p.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	switch {
	case err != nil && v.Ephemeral != nil:
		return nil, volumeStatus(
			fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name))
	case err != nil:
		return nil, volumeStatus(fmt.Sprintf("persistentvolumeclaim %q not found", name))
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, volumeStatus(fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name,
			claim.Spec.VolumeName))
	case claim.DeletionTimestamp != nil:
		return nil, volumeStatus(fmt.Sprintf("persistentvolumeclaim %q is being deleted", name))
	}
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return nil, volumeStatus(err.Error())
		}
	}
	return claim, nil
}

func isBound(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName != "" && (c.Annotations[volume.AnnBindCompleted] != "" ||
		c.Status.Phase == corev1.ClaimBound)
}

// isDelayed reports whether an unbound claim waits for its first pod. A claim that names its volume
// does not.
func (p *VolumeBinding) isDelayed(c *corev1.PersistentVolumeClaim) bool {
	delayed, err := volume.IsDelayBindingMode(c, p.classes)
	return err == nil && delayed && c.Spec.VolumeName == ""
}

// Filter implements framework.FilterPlugin.
func (p *VolumeBinding) Filter(state *framework.CycleState, _ *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	s, ok := state.Read(volumeBindingKey).(*volumeState)
	if !ok {
		return nil
	}
	for _, claim := range s.bound {
		v, err := p.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return volumeMissing
		}
		if volume.CheckNodeAffinity(v, node.Node.Labels) != nil {
			return volumeNotHere
		}
	}
	if len(s.delayed) == 0 {
		return nil
	}
	plan, status := p.plan(s, node.Node)
	if status.OK() {
		s.mu.Lock()
		s.plans[node.Node.Name] = plan
		s.mu.Unlock()
	}
	return status
}

// plan finds a volume for each delayed claim, or decides to provision one on the node.
func (p *VolumeBinding) plan(s *volumeState, node *corev1.Node) (*volumePlan, *framework.Status) {
	plan := &volumePlan{bind: map[string]*corev1.PersistentVolume{}}
	taken := map[string]*corev1.PersistentVolume{}
	for _, claim := range s.delayed {
		if v := p.takenFor(s.volumes, claim); v != nil { // by another pod that shares the claim
			if volume.CheckNodeAffinity(v, node.Labels) != nil {
				return nil, volumeNotHere
			}
			taken[v.Name], plan.bind[claimKey(claim)] = v, v
			continue
		}
		selected := p.selectedNode(claim)
		if selected != "" && selected != node.Name {
			return nil, noVolumeToBind // the scheduling of another pod has chosen another node
		}
		if selected == "" { // otherwise its volume is being provisioned already
			found, err := volume.FindMatchingVolume(claim, p.free(s.volumes, claim), node, taken, true, true)
			if err != nil {
				return nil, framework.AsError(p.Name(), err)
			}
			if found != nil {
				taken[found.Name], plan.bind[claimKey(claim)] = found, found
				continue
			}
		}
		if status := p.canProvision(claim, node); !status.OK() {
			return nil, status
		}
		plan.provision = append(plan.provision, claim)
	}
	return plan, nil
}

// selectedNode returns the node that is selected for the provisioning of a claim; "" if there is none.
func (p *VolumeBinding) selectedNode(claim *corev1.PersistentVolumeClaim) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if node := p.claimed[claimKey(claim)]; node != "" {
		return node
	}
	return claim.Annotations[volume.AnnSelectedNode]
}

// takenFor returns the volume that a claim is being bound to; nil if there is none.
func (p *VolumeBinding) takenFor(volumes []*corev1.PersistentVolume,
	claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) == 0 {
		return nil
	}
	for _, v := range volumes {
		if p.taken[v.Name] == claimKey(claim) {
			return v
		}
	}
	return nil
}

// free leaves out the volumes that another claim is being bound to.
func (p *VolumeBinding) free(volumes []*corev1.PersistentVolume,
	claim *corev1.PersistentVolumeClaim) []*corev1.PersistentVolume {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.taken) == 0 {
		return volumes
	}
	var free []*corev1.PersistentVolume
	for _, v := range volumes {
		if user, ok := p.taken[v.Name]; !ok || user == claimKey(claim) {
			free = append(free, v)
		}
	}
	return free
}

func (p *VolumeBinding) canProvision(claim *corev1.PersistentVolumeClaim, node *corev1.Node) *framework.Status {
	class, err := p.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil || class.Provisioner == "" || class.Provisioner == "kubernetes.io/no-provisioner" ||
		!allows(class.AllowedTopologies, node) {
		return noVolumeToBind
	}
	if !p.hasCapacity(class, claim, node) {
		return notEnoughCapacity
	}
	return nil
}

// allows reports whether the node has one of the listed values for each label of one of the terms.
func allows(terms []corev1.TopologySelectorTerm, node *corev1.Node) bool {
	if len(terms) == 0 {
		return true
	}
	for _, term := range terms {
		matches := len(term.MatchLabelExpressions) > 0
		for _, e := range term.MatchLabelExpressions {
			value, ok := node.Labels[e.Key]
			matches = matches && ok && slices.Contains(e.Values, value)
		}
		if matches {
			return true
		}
	}
	return false
}

// hasCapacity checks the capacity that the driver has published (CSIStorageCapacity), if any.
func (p *VolumeBinding) hasCapacity(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim,
	node *corev1.Node) bool {
	driver, err := p.drivers.Get(class.Provisioner)
	if err != nil || !ptr.Deref(driver.Spec.StorageCapacity, false) {
		return true
	}
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	capacities, _ := p.capacities.List(labels.Everything())
	for _, c := range capacities {
		largest := c.Capacity
		if c.MaximumVolumeSize != nil {
			largest = c.MaximumVolumeSize
		}
		if c.StorageClassName == class.Name && largest != nil && largest.Cmp(want) >= 0 && reaches(c, node) {
			return true
		}
	}
	return false
}

func reaches(c *storagev1.CSIStorageCapacity, node *corev1.Node) bool {
	if c.NodeTopology == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && selector.Matches(labels.Set(node.Labels))
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *VolumeBinding) EventsToRegister() []framework.EventHint {
	changed := framework.Add | framework.Update
	return []framework.EventHint{
		{Event: event(framework.StorageClass, changed), Helps: p.usesClaims},
		{Event: event(framework.PersistentVolumeClaim, changed), Helps: isOwnClaim},
		{Event: event(framework.PersistentVolume, changed), Helps: p.usesClaims},
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeLabel), Helps: p.usesClaims},
		{Event: event(framework.CSIDriver, framework.Update), Helps: p.usesClaims},
		{Event: event(framework.CSIStorageCapacity, changed), Helps: p.usesClaims},
	}
}

func (p *VolumeBinding) usesClaims(pod *framework.PodInfo, _ *framework.Change) bool {
	return len(pod.Claims) > 0
}

// isOwnClaim reports whether a changed claim is one of the pod's.
func isOwnClaim(pod *framework.PodInfo, change *framework.Change) bool {
	claim, ok := change.New.(*corev1.PersistentVolumeClaim)
	return !ok || slices.Contains(pod.Claims, claimKey(claim))
}
