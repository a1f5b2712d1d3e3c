package why

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

// maxBackends limits the different Services and Secrets of an Ingress or webhook configuration that are read.
const maxBackends = 100

// behindIngress finds faults of an Ingress: of its backends, their pods, its certificates and its class.
func (s *surroundings) behindIngress(ctx context.Context, obj *unstructured.Unstructured) (
	found []diagnose.Finding, pods []*unstructured.Unstructured, err error) {
	ingress := &networkingv1.Ingress{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, ingress); err != nil {
		return nil, nil, err
	}
	subject := "Ingress/" + ingress.Name
	add := func(format string, args ...any) {
		found = append(found, diagnose.Finding{Rank: diagnose.RankMissing, Subject: subject,
			Text: fmt.Sprintf(format, args...)})
	}
	if class := ingress.Spec.IngressClassName; class != nil && s.noIngressClass(ctx, *class) {
		add("is of IngressClass/%s, which does not exist", *class)
	}
	services := map[string]*corev1.Service{}
	var below []diagnose.Finding
	for _, b := range diagnose.BackendsOf(ingress) {
		service, read := services[b.Service.Name]
		if !read {
			if len(services) == maxBackends {
				break
			}
			if service, err = s.service(ctx, ingress.Namespace, b.Service.Name); err != nil {
				return nil, nil, err
			}
			services[b.Service.Name] = service
			if service == nil {
				add("sends %s to Service/%s, which does not exist", b.What, b.Service.Name)
			} else if s.pods == nil { // otherwise the caller inspects all Services
				wrong, behind, err := s.behindService(ctx, service)
				if err != nil {
					return nil, nil, err
				}
				below, pods = append(below, wrong...), append(pods, behind...)
			}
		}
		if service != nil && !diagnose.HasPort(service, b.Service.Port) {
			port := b.Service.Port.Name
			if port == "" {
				port = fmt.Sprint(b.Service.Port.Number)
			}
			add("sends %s to the port %s of Service/%s, which it does not have", b.What, port, b.Service.Name)
		}
	}
	for i, tls := range ingress.Spec.TLS {
		if i == maxBackends {
			break
		}
		if tls.SecretName == "" {
			continue
		}
		text := s.once(ingress.Namespace+"/Secret "+tls.SecretName, func() string {
			return s.missing(ctx, ingress.Namespace, diagnose.Need{Kind: "Secret", Name: tls.SecretName})
		})
		if text != "" {
			add("%s", text)
		}
	}
	return append(found, below...), pods, nil
}

// service reads a Service; nil if it does not exist. A Service that the user may not read counts as healthy: the result
// is of type ExternalName, which has no faults.
func (s *surroundings) service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	if len(rest.IsValidPathSegmentName(name)) > 0 {
		return nil, nil
	}
	service, err := s.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}}, nil
	}
	return service, err
}

// behindService is behind for a typed Service.
func (s *surroundings) behindService(ctx context.Context, service *corev1.Service) (
	[]diagnose.Finding, []*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(service)
	if err != nil {
		return nil, nil, err
	}
	return s.behind(ctx, &unstructured.Unstructured{Object: content})
}

func (s *surroundings) noIngressClass(ctx context.Context, name string) bool {
	if len(rest.IsValidPathSegmentName(name)) > 0 {
		return true
	}
	_, err := s.client.NetworkingV1().IngressClasses().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}
