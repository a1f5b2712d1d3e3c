package admission

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// defaultIngressClass gives ingresses without a class the default one.
type defaultIngressClass struct{ cluster Cluster }

func newDefaultIngressClass(env *Env) (Plugin, error) { return &defaultIngressClass{env.Cluster}, nil }

func (p *defaultIngressClass) Mutate(ctx context.Context, a *Attributes) error {
	ingress := a.Object.(*networkingv1.Ingress)
	if _, old := ingress.Annotations["kubernetes.io/ingress.class"]; old || ingress.Spec.IngressClassName != nil {
		return nil
	}
	classes, err := list[*networkingv1.IngressClass](ctx, p.cluster, ingressClasses, "")
	if err != nil {
		return err
	}
	if class, ok := defaultClass(classes, networkingv1.AnnotationIsDefaultIngressClass); ok {
		ingress.Spec.IngressClassName = &class
	}
	return nil
}

// denyExternalIPs rejects external addresses. With them a service could intercept traffic of others
// (CVE-2020-8554). An object may keep its existing ones.
type denyExternalIPs struct{}

func newDenyExternalIPs(*Env) (Plugin, error) { return denyExternalIPs{}, nil }

func (denyExternalIPs) Validate(_ context.Context, a *Attributes) error {
	var had []string
	if a.Old != nil {
		had = a.Old.(*corev1.Service).Spec.ExternalIPs
	}
	for _, ip := range a.Object.(*corev1.Service).Spec.ExternalIPs {
		if !slices.Contains(had, ip) {
			return a.Forbid(errors.New("Use of external IPs is denied by admission control."))
		}
	}
	return nil
}
