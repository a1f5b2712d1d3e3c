package statefulset

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// createClaims makes the volume claims of a pod that are not there.
func (l *look) createClaims(ctx context.Context, pod *corev1.Pod) error {
	for i := range l.set.Spec.VolumeClaimTemplates {
		claim := l.newClaim(&l.set.Spec.VolumeClaimTemplates[i], pod)
		_, err := l.claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		if !apierrors.IsNotFound(err) {
			if err != nil {
				return err
			}
			continue
		}
		_, err = l.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		switch {
		case err == nil:
			l.recorder.Eventf(l.set, corev1.EventTypeNormal, "SuccessfulCreate",
				"create Claim %s Pod %s in StatefulSet %s success", claim.Name, pod.Name, l.set.Name)
		case !apierrors.IsAlreadyExists(err):
			l.recorder.Eventf(l.set, corev1.EventTypeWarning, "FailedCreate",
				"create Claim %s for Pod %s in StatefulSet %s failed error: %v", claim.Name, pod.Name, l.set.Name, err)
			return fmt.Errorf("create claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

func (l *look) newClaim(template *corev1.PersistentVolumeClaim, pod *corev1.Pod) *corev1.PersistentVolumeClaim {
	claim := template.DeepCopy()
	claim.Name, claim.Namespace = claimName(template.Name, pod.Name), l.set.Namespace
	merged := maps.Clone(claim.Labels)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, l.set.Spec.Selector.MatchLabels)
	claim.Labels = merged
	claim.Status = corev1.PersistentVolumeClaimStatus{}
	claim.OwnerReferences = l.claimOwners(nil, nil)
	return claim
}

// claimOwners are the owner references of a claim: what a retention policy of Delete means is
// that the claim goes with the set, or with the pod that a smaller set no longer has. The
// references of others are kept. condemned is that pod, or nil.
func (l *look) claimOwners(refs []metav1.OwnerReference, condemned *corev1.Pod) []metav1.OwnerReference {
	policy := l.set.Spec.PersistentVolumeClaimRetentionPolicy
	deletes := func(p appsv1.PersistentVolumeClaimRetentionPolicyType) bool {
		return p == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	}
	refs = slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool {
		return r.UID == l.set.UID || r.Kind == "Pod" && r.APIVersion == "v1"
	})
	switch {
	case policy == nil:
	case condemned != nil && deletes(policy.WhenScaled):
		refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: condemned.Name, UID: condemned.UID})
	case deletes(policy.WhenDeleted):
		refs = append(refs, *metav1.NewControllerRef(l.set, Kind))
	}
	return refs
}

// syncClaimOwners lets the claims of all pods follow the retention policy.
func (l *look) syncClaimOwners(ctx context.Context) error {
	for _, i := range l.places() {
		if err := l.syncOwners(ctx, l.replicas[i], nil); err != nil {
			return err
		}
	}
	for _, pod := range l.condemned {
		if err := l.syncOwners(ctx, pod, pod); err != nil {
			return err
		}
	}
	return nil
}

func (l *look) syncOwners(ctx context.Context, pod, condemned *corev1.Pod) error {
	for _, template := range l.set.Spec.VolumeClaimTemplates {
		claim, err := l.claims.PersistentVolumeClaims(l.set.Namespace).Get(claimName(template.Name, pod.Name))
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		owners := l.claimOwners(claim.OwnerReferences, condemned)
		if slices.EqualFunc(owners, claim.OwnerReferences, func(a, b metav1.OwnerReference) bool {
			return a.UID == b.UID && a.Kind == b.Kind
		}) {
			continue
		}
		claim = claim.DeepCopy()
		claim.OwnerReferences = owners
		if _, err := l.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("owners of claim %s: %w", claim.Name, err)
		}
	}
	return nil
}
