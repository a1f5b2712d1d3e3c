package statefulset

import (
	"context"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/history"
)

// revisionFor returns the revision for a new pod with this ordinal. During a rolling update, pods below the partition
// keep the current revision.
func (s *sync) revisionFor(ordinal int) *appsv1.ControllerRevision {
	if s.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType &&
		ordinal < firstOrdinal(s.set)+partition(s.set) {
		return s.current
	}
	return s.update
}

// podName returns the name of the pod of the i-th replica.
func podName(set *appsv1.StatefulSet, i int) string {
	return set.Name + "-" + strconv.Itoa(firstOrdinal(set)+i)
}

// newPod returns the pod of the i-th replica and the name of its revision.
func (s *sync) newPod(i int) (pod *corev1.Pod, revision string, err error) {
	ordinal := firstOrdinal(s.set) + i
	r := s.revisionFor(ordinal)
	template, err := history.Template(r)
	if err != nil {
		return nil, "", err
	}
	name := podName(s.set, i)
	pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       s.set.Namespace,
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.set, Kind)},
		},
		Spec: template.Spec,
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = r.Name
	setIdentity(pod, name, ordinal)
	pod.Spec.Hostname, pod.Spec.Subdomain = name, s.set.Spec.ServiceName
	for _, claim := range s.set.Spec.VolumeClaimTemplates {
		mount(pod, claim.Name, claimName(claim.Name, name))
	}
	return pod, r.Name, nil
}

// setIdentity labels a pod with its name and ordinal, and reports whether a label changed.
func setIdentity(pod *corev1.Pod, name string, ordinal int) (changed bool) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	for key, value := range map[string]string{
		appsv1.StatefulSetPodNameLabel: name, appsv1.PodIndexLabel: strconv.Itoa(ordinal),
	} {
		if pod.Labels[key] != value {
			pod.Labels[key], changed = value, true
		}
	}
	return changed
}

// repair sets the identity labels of a replica, which an adopted or modified pod may lack.
func (s *sync) repair(ctx context.Context, i int) error {
	pod := s.replicas[i].DeepCopy()
	if !setIdentity(pod, pod.Name, firstOrdinal(s.set)+i) {
		return nil
	}
	updated, err := s.client().CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
	if err != nil {
		s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedUpdate",
			"update Pod %s in StatefulSet %s failed error: %v", pod.Name, s.set.Name, err)
		return err
	}
	s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulUpdate",
		"update Pod %s in StatefulSet %s successful", pod.Name, s.set.Name)
	s.Versions.Expect(s.key, s.statefulSets.pods, updated.ResourceVersion)
	s.replicas[i] = updated
	return nil
}

// mount replaces the pod's volume of this name by a volume with the claim.
func mount(pod *corev1.Pod, volume, claim string) {
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
}

// claimName returns the name of a pod's claim.
func claimName(template, pod string) string { return template + "-" + pod }
