package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// token lets a node request tokens for its pods.
func (p *nodeRestriction) token(ctx context.Context, node string, a *Attributes) error {
	request, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return errors.New("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return errors.New("node requested token with a pod binding without a uid")
	}
	pod, err := get[*corev1.Pod](ctx, p.cluster, pods, a.Namespace, ref.Name)
	if err != nil {
		return notFound(err, pods, ref.Name)
	}
	if ref.UID != pod.UID {
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The "+
			"object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return errors.New("node requested token bound to a pod scheduled on a different node")
	}
	return p.audience(ctx, a, pod, request.Spec.Audiences)
}

// audience lets a node request tokens for the audiences that volumes of the pod name. For others it requires the
// verb request-serviceaccounts-token-audience on a resource with the audience's name. With a token for another
// audience the node could act as the pod towards servers that the pod itself does not use (KEP-4412).
func (p *nodeRestriction) audience(ctx context.Context, a *Attributes, pod *corev1.Pod, audiences []string) error {
	requested := ""
	if slices.Equal(audiences, p.tokenAudiences) { // the default, or an equal list
		if ok, err := p.podNamesAudience(ctx, pod, ""); ok || err != nil {
			return err
		}
	}
	switch {
	case len(audiences) == 1:
		requested = audiences[0]
	case len(audiences) > 1 && !slices.Equal(audiences, p.tokenAudiences):
		return errors.New("node may only request 0 or 1 audiences")
	}
	ok, err := p.podNamesAudience(ctx, pod, requested)
	if ok || err != nil {
		return err
	}
	on := corev1.SchemeGroupVersion.WithResource(requested)
	if ok, _, err := p.cluster.Authorize(ctx, a.User, "request-serviceaccounts-token-audience", on, "", a.Namespace,
		a.Name); ok && err == nil {
		return nil
	}
	return fmt.Errorf("audience %q not found in pod spec volume, %s is not authorized to request tokens for this "+
		"audience", requested, a.User.Name)
}

// podNamesAudience reports whether a volume of the pod has tokens for the audience: a projected one, or one of a
// CSI driver that requests them.
func (p *nodeRestriction) podNamesAudience(ctx context.Context, pod *corev1.Pod, audience string) (bool, error) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience
		}) {
			return true, nil
		}
		name, err := p.driverOf(ctx, pod, v)
		if err != nil || name == "" {
			if err != nil && !errors.Is(err, ErrNotFound) {
				return false, fmt.Errorf("error validating audience %q: %w", audience, err)
			}
			continue
		}
		driver, err := get[*storagev1.CSIDriver](ctx, p.cluster, csiDrivers, "", name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return false, fmt.Errorf("error validating audience %q: %w", audience, err)
		}
		if err == nil && slices.ContainsFunc(driver.Spec.TokenRequests, func(t storagev1.TokenRequest) bool {
			return t.Audience == audience
		}) {
			return true, nil
		}
	}
	return false, nil
}

// driverOf returns the CSI driver of a volume, by its claim if it has one; "" if there is none.
func (p *nodeRestriction) driverOf(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	var claim string
	switch {
	case v.CSI != nil:
		return v.CSI.Driver, nil
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	default:
		return "", nil
	}
	pvc, err := get[*corev1.PersistentVolumeClaim](ctx, p.cluster, claims, pod.Namespace, claim)
	if err != nil || pvc.Spec.VolumeName == "" {
		return "", err
	}
	pv, err := get[*corev1.PersistentVolume](ctx, p.cluster, volumes, "", pvc.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return "", err
	}
	return pv.Spec.CSI.Driver, nil
}
