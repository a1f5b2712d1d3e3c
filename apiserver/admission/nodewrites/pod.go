package nodewrites

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

type podRule = func(ctx context.Context, c Cluster, now, old *corev1.Pod) error

// PodStatus lists the fields of a pod's status.
var PodStatus = []Row[*corev1.Pod]{
	{"observedGeneration", "clients that wait for a resize", "at most the pod's generation", refuseGeneration},
	{"phase", "workloads, Jobs, quotas and the scheduler, which count pods that have ended no more; endpoints, " +
		"policies, pod-gc", "Kubernetes' phases; one that has ended does not begin again", refusePhase},
	{"conditions", "endpoints, workloads, Jobs (DisruptionTarget), readiness gates",
		"200, one of each type; a pod with a node has been scheduled", refusePodConditions},
	{"message", "nothing", "64 KiB", func(_ context.Context, _ Cluster, now, _ *corev1.Pod) error {
		return boundedText(now.Status.Message)
	}},
	{"reason", "nothing", "64 KiB", func(_ context.Context, _ Cluster, now, _ *corev1.Pod) error {
		return boundedText(now.Status.Reason)
	}},
	{"nominatedNodeName", "scheduler, which keeps room on that node", "what it was, or nothing", refuseNomination},
	{"hostIP", "clients", "an address of the Node, or one that could be", refuseHostAddresses},
	{"hostIPs", "clients", "as hostIP", nil},
	{"podIP", "endpoints, DNS, policies, the API server's proxy",
		"in the Node's range, of the Node, or of no Service and no ready pod of another node", refusePodAddresses},
	{"podIPs", "as podIP", "as podIP; one of each family, the first of which is podIP", nil},
	{"startTime", "autoscaler, ranking of pods to delete", "anything: it is about its own pods", nil},
	{"initContainerStatuses", "as containerStatuses", "as containerStatuses",
		ofContainers(func(s *corev1.PodStatus) []corev1.ContainerStatus { return s.InitContainerStatuses },
			initContainers)},
	{"containerStatuses", "Jobs (exit codes), quotas and the scheduler (resources), ranking of pods to delete " +
		"(restarts)", "one for each container of the spec; resources near those of the spec; no restart of what has " +
		"ended for good, by validation",
		ofContainers(func(s *corev1.PodStatus) []corev1.ContainerStatus { return s.ContainerStatuses }, appContainers)},
	{"qosClass", "clients", "immutable, by validation", nil},
	{"ephemeralContainerStatuses", "clients", "as containerStatuses",
		ofContainers(func(s *corev1.PodStatus) []corev1.ContainerStatus { return s.EphemeralContainerStatuses },
			ephemeralContainers)},
	{"resize", "clients of earlier versions", "Kubernetes' values", refuseResize},
	{"resourceClaimStatuses", "Node authorizer: the claims that the node may read", "what controllers wrote",
		func(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
			return unchanged(now.Status.ResourceClaimStatuses, old.Status.ResourceClaimStatuses)
		}},
	{"extendedResourceClaimStatus", "Node authorizer: the claims that the node may read", "what the scheduler wrote",
		func(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
			return unchanged(now.Status.ExtendedResourceClaimStatus, old.Status.ExtendedResourceClaimStatus)
		}},
	{"allocatedResources", "quotas, scheduler", "near the resources of the spec", refuseAllocated},
	{"resources", "quotas, scheduler", "near the resources of the spec", refusePodResources},
	{"nodeAllocatableResourceClaimStatuses", "scheduler", "what the scheduler wrote, or nothing",
		func(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
			if len(now.Status.NodeAllocatableResourceClaimStatuses) == 0 {
				return nil
			}
			return unchanged(now.Status.NodeAllocatableResourceClaimStatuses,
				old.Status.NodeAllocatableResourceClaimStatuses)
		}},
	{"volumeHealth", "clients", "one for each volume of the spec", refuseVolumeHealth},
}

func unchanged(now, old any) error {
	if !equality.Semantic.DeepEqual(now, old) {
		return errImmutable
	}
	return nil
}

func refuseGeneration(_ context.Context, _ Cluster, now, _ *corev1.Pod) error {
	if g := now.Status.ObservedGeneration; g < 0 || g > now.Generation {
		return fmt.Errorf("%d is not between 0 and metadata.generation", g)
	}
	return nil
}

// refusePhase keeps a pod that has ended from running again: controllers have replaced it, and quotas have given
// its share to others.
func refusePhase(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
	switch is, was := now.Status.Phase, old.Status.Phase; {
	case is == was:
	case was == corev1.PodSucceeded, was == corev1.PodFailed:
		return fmt.Errorf("a pod that has %s does not become %s", was, is)
	case !slices.Contains([]corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed,
		corev1.PodUnknown, ""}, is):
		return fmt.Errorf("%q is no phase", is)
	}
	return nil
}

func refusePodConditions(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
	if equality.Semantic.DeepEqual(now.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	for _, c := range now.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			return errors.New("a pod on a node has been scheduled")
		}
	}
	return refuseConditions(now.Status.Conditions, func(c *corev1.PodCondition) string { return string(c.Type) })
}

func refuseNomination(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
	if now.Status.NominatedNodeName != "" && now.Status.NominatedNodeName != old.Status.NominatedNodeName {
		return errImmutable
	}
	return nil
}

func refuseHostAddresses(ctx context.Context, c Cluster, now, old *corev1.Pod) error {
	claimed := []string{now.Status.HostIP}
	for _, ip := range now.Status.HostIPs {
		claimed = append(claimed, ip.IP)
	}
	existing := []string{"", old.Status.HostIP}
	for _, ip := range old.Status.HostIPs {
		existing = append(existing, ip.IP)
	}
	return refuseAddresses(ctx, c, now.Spec.NodeName, claimed, existing)
}

func refusePodAddresses(ctx context.Context, c Cluster, now, old *corev1.Pod) error {
	s := &now.Status
	claimed := []string{s.PodIP}
	for _, ip := range s.PodIPs {
		claimed = append(claimed, ip.IP)
	}
	if len(s.PodIPs) > 0 && s.PodIP != s.PodIPs[0].IP {
		return errors.New("must be the first of podIPs")
	}
	existing := []string{"", old.Status.PodIP}
	for _, ip := range old.Status.PodIPs {
		existing = append(existing, ip.IP)
	}
	return refuseAddresses(ctx, c, now.Spec.NodeName, claimed, existing)
}

// refuseAddresses rejects claimed addresses that are not in known and that the node may not claim.
func refuseAddresses(ctx context.Context, c Cluster, node string, claimed, known []string) error {
	for i, text := range claimed {
		if slices.Contains(known, text) || slices.Contains(claimed[:i], text) {
			continue
		}
		if i > 2 {
			return errors.New("has more than two addresses")
		}
		if err := refusePodAddress(ctx, c, node, text); err != nil {
			return err
		}
	}
	return nil
}

func refuseResize(_ context.Context, _ Cluster, now, _ *corev1.Pod) error {
	switch now.Status.Resize {
	case "", "Proposed", corev1.PodResizeStatusInProgress, corev1.PodResizeStatusDeferred,
		corev1.PodResizeStatusInfeasible:
		return nil
	}
	return fmt.Errorf("%q is no state of a resize", now.Status.Resize)
}

func refuseVolumeHealth(_ context.Context, _ Cluster, now, _ *corev1.Pod) error {
	if err := bounded(len(now.Status.VolumeHealth), len(now.Spec.Volumes)); err != nil {
		return err
	}
	for _, h := range now.Status.VolumeHealth {
		if !slices.ContainsFunc(now.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == h.Name }) {
			return fmt.Errorf("there is no volume %q", h.Name)
		}
	}
	return nil
}

// specContainer is the part of the spec that belongs to a container's status.
type specContainer struct {
	name      string
	resources corev1.ResourceRequirements
}

func appContainers(spec *corev1.PodSpec) []specContainer  { return containersOf(spec.Containers) }
func initContainers(spec *corev1.PodSpec) []specContainer { return containersOf(spec.InitContainers) }
func containersOf(all []corev1.Container) []specContainer {
	containers := make([]specContainer, len(all))
	for i := range all {
		containers[i] = specContainer{all[i].Name, all[i].Resources}
	}
	return containers
}

func ephemeralContainers(spec *corev1.PodSpec) []specContainer {
	containers := make([]specContainer, len(spec.EphemeralContainers))
	for i := range spec.EphemeralContainers {
		c := &spec.EphemeralContainers[i].EphemeralContainerCommon
		containers[i] = specContainer{c.Name, c.Resources}
	}
	return containers
}

// ofContainers checks a list of statuses against the containers of the spec.
func ofContainers(statuses func(*corev1.PodStatus) []corev1.ContainerStatus,
	of func(*corev1.PodSpec) []specContainer) podRule {
	return func(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
		is, was := statuses(&now.Status), statuses(&old.Status)
		if len(is) == 0 || equality.Semantic.DeepEqual(is, was) {
			return nil
		}
		containers := of(&now.Spec)
		if err := bounded(len(is), len(containers)); err != nil {
			return err
		}
		seen := make(map[string]bool, len(is))
		for i := range is {
			index := slices.IndexFunc(containers, func(c specContainer) bool { return c.name == is[i].Name })
			switch {
			case index < 0:
				return fmt.Errorf("there is no container %q", is[i].Name)
			case seen[is[i].Name]:
				return fmt.Errorf("there is more than one %q", is[i].Name)
			case is[i].RestartCount < 0:
				return errors.New("restartCount must not be negative")
			}
			seen[is[i].Name] = true
			if err := refuseContainerResources(&is[i], was, &containers[index], now.Spec.Resources); err != nil {
				return fmt.Errorf("%s: %w", is[i].Name, err)
			}
		}
		return nil
	}
}

func refuseContainerResources(is *corev1.ContainerStatus, was []corev1.ContainerStatus, spec *specContainer,
	pod *corev1.ResourceRequirements) error {
	before := &corev1.ContainerStatus{}
	if i := slices.IndexFunc(was, func(s corev1.ContainerStatus) bool { return s.Name == is.Name }); i >= 0 {
		before = &was[i]
	}
	requested := []corev1.ResourceList{spec.resources.Requests, spec.resources.Limits}
	if pod != nil {
		requested = append(requested, pod.Requests, pod.Limits)
	}
	if err := refuseAmounts(is.AllocatedResources, before.AllocatedResources, requested); err != nil {
		return err
	}
	return refuseRequirements(is.Resources, before.Resources, requested)
}

func refuseAllocated(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
	return refuseAmounts(now.Status.AllocatedResources, old.Status.AllocatedResources, podResources(&now.Spec))
}

func refusePodResources(_ context.Context, _ Cluster, now, old *corev1.Pod) error {
	return refuseRequirements(now.Status.Resources, old.Status.Resources, podResources(&now.Spec))
}

// podResources returns the resources of the pod, and of each container.
func podResources(spec *corev1.PodSpec) []corev1.ResourceList {
	var requested []corev1.ResourceList
	if spec.Resources != nil {
		requested = append(requested, spec.Resources.Requests, spec.Resources.Limits)
	}
	for _, c := range slices.Concat(appContainers(spec), initContainers(spec)) {
		requested = append(requested, c.resources.Requests, c.resources.Limits)
	}
	return requested
}

func refuseRequirements(is, was *corev1.ResourceRequirements, requested []corev1.ResourceList) error {
	if is == nil {
		return nil
	}
	if was == nil {
		was = &corev1.ResourceRequirements{}
	}
	if err := refuseAmounts(is.Requests, was.Requests, requested); err != nil {
		return err
	}
	return refuseAmounts(is.Limits, was.Limits, requested)
}

// leastReported are amounts that a report may always contain: cgroups cannot express the smallest amounts, so they
// are reported larger than they are.
var leastReported = map[corev1.ResourceName]resource.Quantity{
	corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
}

// refuseAmounts rejects amounts that would charge the namespace's quotas for resources that its pods never
// requested. A kubelet reports the amounts of the present or a former spec, rounded to values that cgroups can
// express. So an amount may be at most the one that the object has already, or leastReported and twice the sum of
// the amounts in the spec.
func refuseAmounts(is, was corev1.ResourceList, requested []corev1.ResourceList) error {
	for name, q := range is {
		if before, ok := was[name]; q.Sign() >= 0 && ok && q.Cmp(before) <= 0 {
			continue
		}
		maximum := leastReported[name].DeepCopy()
		for _, list := range requested {
			maximum.Add(list[name])
			maximum.Add(list[name])
		}
		if q.Sign() < 0 || q.Cmp(maximum) > 0 {
			return fmt.Errorf("%s of %s is not what the spec asks for", q.String(), name)
		}
	}
	return nil
}
