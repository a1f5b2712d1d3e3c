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

// createClaims creates the missing volume claims of a pod.
func (s *sync) createClaims(ctx context.Context, pod *corev1.Pod) error {
	for i := range s.set.Spec.VolumeClaimTemplates {
		claim := s.newClaim(&s.set.Spec.VolumeClaimTemplates[i], pod)
		_, err := s.claims.PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		if !apierrors.IsNotFound(err) {
			if err != nil {
				return err
			}
			continue
		}
		_, err = s.client().CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		switch {
		case err == nil:
			s.recorder.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulCreate",
				"create Claim %s Pod %s in StatefulSet %s success", claim.Name, pod.Name, s.set.Name)
		case !apierrors.IsAlreadyExists(err):
			s.recorder.Eventf(s.set, corev1.EventTypeWarning, "FailedCreate",
				"create Claim %s for Pod %s in StatefulSet %s failed error: %v", claim.Name, pod.Name, s.set.Name, err)
			return fmt.Errorf("create claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// newClaim returns the claim of a pod for a template. It has the labels of the set's selector.
func (s *sync) newClaim(template *corev1.PersistentVolumeClaim, pod *corev1.Pod) *corev1.PersistentVolumeClaim {
	claim := template.DeepCopy()
	claim.Name, claim.Namespace = claimName(template.Name, pod.Name), s.set.Namespace
	merged := maps.Clone(claim.Labels)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, s.set.Spec.Selector.MatchLabels)
	claim.Labels = merged
	claim.Status = corev1.PersistentVolumeClaimStatus{}
	claim.OwnerReferences = s.claimOwners(nil, nil)
	return claim
}

// claimOwners returns the owner references of a claim. With the retention policy Delete, the set owns the claim
// (WhenDeleted), or its pod does if a smaller set no longer has that pod (WhenScaled). condemned is that pod, or nil.
// The references to other owners stay.
func (s *sync) claimOwners(refs []metav1.OwnerReference, condemned *corev1.Pod) []metav1.OwnerReference {
	policy := s.set.Spec.PersistentVolumeClaimRetentionPolicy
	deletes := func(p appsv1.PersistentVolumeClaimRetentionPolicyType) bool {
		return p == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	}
	refs = slices.DeleteFunc(slices.Clone(refs), func(r metav1.OwnerReference) bool {
		return r.UID == s.set.UID || r.Kind == "Pod" && r.APIVersion == "v1"
	})
	switch {
	case policy == nil:
	case condemned != nil && deletes(policy.WhenScaled):
		refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: condemned.Name,
			UID: condemned.UID})
	case deletes(policy.WhenDeleted):
		refs = append(refs, *metav1.NewControllerRef(s.set, Kind))
	}
	return refs
}

// syncClaimOwners sets the owner references of the claims of all pods by the retention policy.
func (s *sync) syncClaimOwners(ctx context.Context) error {
	for _, i := range s.indices() {
		if err := s.syncOwners(ctx, s.replicas[i], nil); err != nil {
			return err
		}
	}
	for _, pod := range s.condemned {
		if err := s.syncOwners(ctx, pod, pod); err != nil {
			return err
		}
	}
	return nil
}

// syncOwners sets the owner references of the claims of one pod.
func (s *sync) syncOwners(ctx context.Context, pod, condemned *corev1.Pod) error {
	for _, template := range s.set.Spec.VolumeClaimTemplates {
		claim, err := s.claims.PersistentVolumeClaims(s.set.Namespace).Get(claimName(template.Name, pod.Name))
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		owners := s.claimOwners(claim.OwnerReferences, condemned)
		if slices.EqualFunc(owners, claim.OwnerReferences, func(a, b metav1.OwnerReference) bool {
			return a.UID == b.UID && a.Kind == b.Kind
		}) {
			continue
		}
		claim = claim.DeepCopy()
		claim.OwnerReferences = owners
		if _, err := s.client().CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update owners of claim %s: %w", claim.Name, err)
		}
	}
	return nil
}
