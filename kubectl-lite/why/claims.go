package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

const (
	selectedNode  = "volume.kubernetes.io/selected-node" // the scheduler's annotation of a claim
	noProvisioner = "kubernetes.io/no-provisioner"
)

// claimState is the reason why a PersistentVolumeClaim is not bound. A claim and a pod may seem to wait for each other:
// a claim with WaitForFirstConsumer has no volume before the pod has a node. Then the pod is at fault.
type claimState struct {
	absent    bool
	phase     corev1.PersistentVolumeClaimPhase
	text      string // the cause, after the phase; "" if it is not known
	waits     bool   // the claim waits for the scheduler to choose a node for a pod
	node      string // the node that the scheduler has chosen for the volume
	class     string
	forbidden bool // the user may not read the claim
}

// bound reports whether the claim is as it should be, or unknown.
func (c *claimState) bound() bool { return c.forbidden || c.phase == corev1.ClaimBound }

// claim reads a claim once, and finds out why it is not bound.
func (s *surroundings) claim(ctx context.Context, namespace, name string) claimState {
	key := namespace + "/" + name
	state, read := s.claims[key]
	if !read {
		claim, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			state = claimState{absent: true}
		case err != nil:
			state = claimState{forbidden: true}
		default:
			state = s.explainClaim(ctx, claim)
		}
		s.claims[key] = state
	}
	return state
}

// explainClaim finds out why a claim is not bound.
func (s *surroundings) explainClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) claimState {
	state := claimState{phase: claim.Status.Phase, class: ptr.Deref(claim.Spec.StorageClassName, "")}
	if state.phase == "" {
		state.phase = corev1.ClaimPending
	}
	if state.phase != corev1.ClaimPending {
		state.text = s.lastEvent(ctx, claim)
		return state
	}
	if claim.Spec.VolumeName != "" {
		state.text = s.namedVolume(ctx, claim)
		return state
	}
	if state.class == "" {
		state.text = s.lastEvent(ctx, claim)
		if state.text == "" && claim.Spec.StorageClassName == nil {
			state.text = "it names no StorageClass, and no StorageClass is the default"
		}
		return state
	}
	class, err := s.client.StorageV1().StorageClasses().Get(ctx, state.class, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		state.text = fmt.Sprintf("StorageClass/%s does not exist", state.class)
		return state
	}
	if err != nil {
		state.text = s.lastEvent(ctx, claim)
		return state
	}
	delayed := ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
	state.node = claim.Annotations[selectedNode]
	switch {
	case class.Provisioner == noProvisioner && s.noVolumes(ctx, state.class):
		state.text = fmt.Sprintf("StorageClass/%s makes no volumes, and it has no PersistentVolume that is available",
			state.class)
	case delayed && state.node == "":
		state.waits = true
	default:
		if state.text = s.lastEvent(ctx, claim); state.text == "" {
			state.text = fmt.Sprintf("its provisioner %s has not made a volume: is it running?", class.Provisioner)
		}
	}
	return state
}

// namedVolume describes the fault of the volume that a claim names, or returns "".
func (s *surroundings) namedVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) string {
	volume, err := s.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("it names PersistentVolume/%s, which does not exist", claim.Spec.VolumeName)
	}
	if err == nil && volume.Spec.ClaimRef != nil && (volume.Spec.ClaimRef.Name != claim.Name ||
		volume.Spec.ClaimRef.Namespace != claim.Namespace) {
		return fmt.Sprintf("it names PersistentVolume/%s, which PersistentVolumeClaim/%s in %s has", volume.Name,
			volume.Spec.ClaimRef.Name, volume.Spec.ClaimRef.Namespace)
	}
	return s.lastEvent(ctx, claim)
}

// noVolumes reports whether no volume of a class is available. It reports false if the user may not list volumes.
func (s *surroundings) noVolumes(ctx context.Context, class string) bool {
	list, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	return err == nil && !slices.ContainsFunc(list.Items, func(v corev1.PersistentVolume) bool {
		return v.Spec.StorageClassName == class && v.Status.Phase == corev1.VolumeAvailable
	})
}

// waitingForPod are the reasons of events of a claim that waits for the scheduler.
var waitingForPod = map[string]bool{"WaitForFirstConsumer": true, "WaitForPodScheduled": true}

// lastEvent returns the message of the newest event about a claim, except for the ones that it waits for a pod.
func (s *surroundings) lastEvent(ctx context.Context, claim *corev1.PersistentVolumeClaim) string {
	events, err := s.client.CoreV1().Events(claim.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.Set{"involvedObject.uid": string(claim.UID)}.String()})
	if err != nil {
		return ""
	}
	all := slices.DeleteFunc(events.Items, func(e corev1.Event) bool { return waitingForPod[e.Reason] })
	if len(all) == 0 {
		return ""
	}
	newest := slices.MaxFunc(all, func(a, b corev1.Event) int {
		return diagnose.EventTime(a).Compare(diagnose.EventTime(b))
	})
	return strings.TrimSpace(newest.Message)
}

// claimOf describes the fault of a claim that a pod needs, or returns "". A claim that waits for the pod has none.
func (s *surroundings) claimOf(ctx context.Context, pod *corev1.Pod, name string) string {
	state := s.claim(ctx, pod.Namespace, name)
	switch {
	case state.absent:
		return fmt.Sprintf("needs PersistentVolumeClaim/%s, which does not exist", name)
	case state.bound():
		return ""
	case state.waits && pod.Spec.NodeName != "":
		return fmt.Sprintf("needs PersistentVolumeClaim/%s, for which the scheduler must choose a node, and bypasses "+
			"the scheduler: it was created with spec.nodeName", name)
	case state.waits:
		return ""
	}
	if state.node != "" {
		s.placed[pod.Namespace+"/"+pod.Name] = true
	}
	return strings.TrimSuffix(fmt.Sprintf("needs PersistentVolumeClaim/%s, which is %s: %s", name, state.phase,
		state.text), ": ")
}

// behindClaim finds the fault of a claim. If the claim waits for its pods, it returns them with their faults.
func (s *surroundings) behindClaim(ctx context.Context, obj *unstructured.Unstructured) (
	found []diagnose.Finding, pods []*unstructured.Unstructured, err error) {
	state := s.claim(ctx, obj.GetNamespace(), obj.GetName())
	if state.bound() || state.absent {
		return nil, nil, nil
	}
	add := func(rank diagnose.Rank, text string) {
		found = append(found, diagnose.Finding{Rank: rank, Subject: "PersistentVolumeClaim/" + obj.GetName(),
			Text: text})
	}
	if !state.waits {
		if state.text != "" {
			add(diagnose.RankStuck, fmt.Sprintf("is %s: %s", state.phase, state.text))
		}
		return found, nil, nil
	}
	if pods, err = s.consumers(ctx, obj.GetNamespace(), obj.GetName()); err != nil {
		return nil, nil, err
	}
	if len(pods) == 0 {
		add(diagnose.RankPending, fmt.Sprintf("is Pending: it gets its volume when a pod that uses it has a node "+
			"(StorageClass/%s waits for the first consumer), and no pod uses it", state.class))
		return found, nil, nil
	}
	var names []string
	bypassed := true
	for _, pod := range pods {
		names = append(names, "Pod/"+pod.GetName())
		node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
		bypassed = bypassed && node != ""
		if s.pods == nil { // otherwise the caller inspects all pods
			found = append(found, diagnose.Inspect(pod, s.now)...)
		}
	}
	if more := len(names) - 3; more > 0 {
		names = append(names[:3], fmt.Sprintf("%d more", more))
	}
	if bypassed {
		add(diagnose.RankMissing, fmt.Sprintf("is Pending: the scheduler must choose a node for a pod that uses it "+
			"(StorageClass/%s waits for the first consumer), but %s bypasses the scheduler: it was created with "+
			"spec.nodeName", state.class, strings.Join(names, ", ")))
		return found, pods, nil
	}
	add(diagnose.RankSummary, fmt.Sprintf("is Pending: it gets its volume when %s has a node (StorageClass/%s waits "+
		"for the first consumer)", strings.Join(names, " or "), state.class))
	return found, pods, nil
}

// consumers returns the pods that use a claim and have not ended, by name.
func (s *surroundings) consumers(ctx context.Context, namespace, claim string) (
	pods []*unstructured.Unstructured, err error) {
	all, err := s.selected(ctx, namespace, labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, obj := range all {
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pod); err != nil {
			return nil, err
		}
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
			slices.Contains(diagnose.NeedsOf(pod), diagnose.Need{Kind: "PersistentVolumeClaim", Name: claim}) {
			pods = append(pods, obj)
		}
	}
	return pods, nil
}
