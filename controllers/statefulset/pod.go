package statefulset

import (
	"context"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/history"
)

// revisionFor is the revision that a new pod of an ordinal gets. While a rolling update is
// under way, what lies below the partition stays at the current one.
func (l *look) revisionFor(ordinal int) *appsv1.ControllerRevision {
	if l.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType && ordinal < firstOrdinal(l.set)+partition(l.set) {
		return l.current
	}
	return l.update
}

// podName is the name of the pod of the i-th replica.
func podName(set *appsv1.StatefulSet, i int) string {
	return set.Name + "-" + strconv.Itoa(firstOrdinal(set)+i)
}

// newPod is the pod of the i-th replica.
func (l *look) newPod(i int) (pod *corev1.Pod, revision string, err error) {
	ordinal := firstOrdinal(l.set) + i
	r := l.revisionFor(ordinal)
	template, err := history.Template(r)
	if err != nil {
		return nil, "", err
	}
	name := podName(l.set, i)
	pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			Namespace:       l.set.Namespace,
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.set, Kind)},
		},
		Spec: template.Spec,
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = r.Name
	setIdentity(pod, name, ordinal)
	pod.Spec.Hostname, pod.Spec.Subdomain = name, l.set.Spec.ServiceName
	for _, claim := range l.set.Spec.VolumeClaimTemplates {
		mount(pod, claim.Name, claimName(claim.Name, name))
	}
	return pod, r.Name, nil
}

// setIdentity labels a pod with its name and ordinal and says whether that was missing.
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

// mend gives a pod, adopted or tampered with, the labels of its identity.
func (l *look) mend(ctx context.Context, i int) error {
	pod := l.replicas[i].DeepCopy()
	if !setIdentity(pod, pod.Name, firstOrdinal(l.set)+i) {
		return nil
	}
	updated, err := l.client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
	if err != nil {
		l.recorder.Eventf(l.set, corev1.EventTypeWarning, "FailedUpdate",
			"update Pod %s in StatefulSet %s failed error: %v", pod.Name, l.set.Name, err)
		return err
	}
	l.recorder.Eventf(l.set, corev1.EventTypeNormal, "SuccessfulUpdate",
		"update Pod %s in StatefulSet %s successful", pod.Name, l.set.Name)
	l.written.Note(l.key, l.statefulSets.pods, updated.ResourceVersion)
	l.replicas[i] = updated
	return nil
}

// mount puts a claim in the place of the volume of a name.
func mount(pod *corev1.Pod, volume, claim string) {
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
}

func claimName(template, pod string) string { return template + "-" + pod }
