package admission

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// The finalizers that controllers remove when a volume or a claim is no longer in use.
const (
	claimProtection  = "kubernetes.io/pvc-protection"
	volumeProtection = "kubernetes.io/pv-protection"
)

// defaultStorageClass gives claims without a class the default one.
type defaultStorageClass struct{ cluster Cluster }

func newDefaultStorageClass(env *Env) (Plugin, error) { return &defaultStorageClass{env.Cluster}, nil }

func (p *defaultStorageClass) Mutate(ctx context.Context, a *Attributes) error {
	claim := a.Object.(*corev1.PersistentVolumeClaim)
	if _, old := claim.Annotations[corev1.BetaStorageClassAnnotation]; old || claim.Spec.StorageClassName != nil {
		return nil
	}
	classes, err := list[*storagev1.StorageClass](ctx, p.cluster, storageClasses, "")
	if err != nil {
		return err
	}
	if class, ok := defaultClass(classes, "storageclass.kubernetes.io/is-default-class",
		"storageclass.beta.kubernetes.io/is-default-class"); ok {
		claim.Spec.StorageClassName = &class
	}
	return nil
}

// defaultClass returns the newest class that an annotation marks as the default.
func defaultClass[T api.Object](classes []T, annotations ...string) (string, bool) {
	classes = slices.DeleteFunc(classes, func(c T) bool {
		return !slices.ContainsFunc(annotations, func(key string) bool { return c.GetAnnotations()[key] == "true" })
	})
	if len(classes) == 0 {
		return "", false
	}
	return slices.MinFunc(classes, func(a, b T) int {
		created, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		if order := bt.Compare(created.Time); order != 0 {
			return order
		}
		return compareNames(a, b)
	}).GetName(), true
}

func compareNames(a, b metav1.Object) int {
	switch {
	case a.GetName() < b.GetName():
		return -1
	case a.GetName() > b.GetName():
		return 1
	}
	return 0
}

// storageProtection adds the finalizers that keep volumes and claims while they are in use.
type storageProtection struct{}

func newStorageProtection(*Env) (Plugin, error) { return storageProtection{}, nil }

func (storageProtection) Mutate(_ context.Context, a *Attributes) error {
	finalizer := volumeProtection
	if _, ok := a.Object.(*corev1.PersistentVolumeClaim); ok {
		finalizer = claimProtection
	}
	if finalizers := a.Object.GetFinalizers(); !slices.Contains(finalizers, finalizer) {
		a.Object.SetFinalizers(append(finalizers, finalizer))
	}
	return nil
}

// claimResize lets claims grow only if their volume can grow.
type claimResize struct{ cluster Cluster }

func newClaimResize(env *Env) (Plugin, error) { return &claimResize{env.Cluster}, nil }

func (p *claimResize) Validate(ctx context.Context, a *Attributes) error {
	claim, old := a.Object.(*corev1.PersistentVolumeClaim), a.Old.(*corev1.PersistentVolumeClaim)
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(old.Spec.Resources.Requests[corev1.ResourceStorage]) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return a.Forbid(errors.New("Only bound persistent volume claims can be expanded"))
	}
	name := classOf(claim)
	if name != "" && name == classOf(old) {
		class, err := get[*storagev1.StorageClass](ctx, p.cluster, storageClasses, "", name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion {
			return nil
		}
	}
	return a.Forbid(errors.New("only dynamically provisioned pvc can be resized and the storageclass that " +
		"provisions the pvc must support resize"))
}

func classOf(claim *corev1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}
