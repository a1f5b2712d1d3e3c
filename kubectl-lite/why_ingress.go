package kubectllite

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
)

// mostBackends is how many different Services and Secrets of an Ingress are looked at.
const mostBackends = 100

// behindIngress is what is wrong with the Services that an Ingress sends requests to, with their pods, and with its
// certificates and its class.
func (s *surroundings) behindIngress(ctx context.Context, obj *unstructured.Unstructured) (found []finding, pods []*unstructured.Unstructured, err error) {
	ingress := &networkingv1.Ingress{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, ingress); err != nil {
		return nil, nil, err
	}
	subject := "Ingress/" + ingress.Name
	add := func(format string, args ...any) {
		found = append(found, finding{rank: rankMissing, subject: subject, text: fmt.Sprintf(format, args...)})
	}
	if class := ingress.Spec.IngressClassName; class != nil && s.noIngressClass(ctx, *class) {
		add("is of IngressClass/%s, which does not exist", *class)
	}
	services := map[string]*corev1.Service{}
	var below []finding
	for _, b := range backendsOf(ingress) {
		service, known := services[b.service.Name]
		if !known {
			if len(services) == mostBackends {
				break
			}
			if service, err = s.service(ctx, ingress.Namespace, b.service.Name); err != nil {
				return nil, nil, err
			}
			services[b.service.Name] = service
			if service == nil {
				add("sends %s to Service/%s, which does not exist", b.what, b.service.Name)
			} else if s.pods == nil { // otherwise the Service is looked at for itself
				wrong, behind, err := s.behindService(ctx, service)
				if err != nil {
					return nil, nil, err
				}
				below, pods = append(below, wrong...), append(pods, behind...)
			}
		}
		if service != nil && !hasPort(service, b.service.Port) {
			port := b.service.Port.Name
			if port == "" {
				port = fmt.Sprint(b.service.Port.Number)
			}
			add("sends %s to the port %s of Service/%s, which it does not have", b.what, port, b.service.Name)
		}
	}
	for i, tls := range ingress.Spec.TLS {
		if i == mostBackends {
			break
		}
		if tls.SecretName == "" {
			continue
		}
		text := s.once(ingress.Namespace+"/Secret "+tls.SecretName, func() string {
			return s.missing(ctx, ingress.Namespace, need{"Secret", tls.SecretName})
		})
		if text != "" {
			add("%s", text)
		}
	}
	return append(found, below...), pods, nil
}

// backend is a Service, and the requests that are sent to it.
type backend struct {
	what    string
	service *networkingv1.IngressServiceBackend
}

func backendsOf(ingress *networkingv1.Ingress) (all []backend) {
	if d := ingress.Spec.DefaultBackend; d != nil && d.Service != nil {
		all = append(all, backend{"what no rule matches", d.Service})
	}
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, path := range rule.HTTP.Paths {
			if path.Backend.Service != nil {
				all = append(all, backend{rule.Host + path.Path, path.Backend.Service})
			}
		}
	}
	return all
}

// service is a Service, or nil where there is none by that name. One that the user may not see is taken to be in order.
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

func (s *surroundings) behindService(ctx context.Context, service *corev1.Service) ([]finding, []*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(service)
	if err != nil {
		return nil, nil, err
	}
	return s.behind(ctx, &unstructured.Unstructured{Object: content})
}

// hasPort reports whether a Service has a port by its name or number. One that is only a name has those of its host.
func hasPort(service *corev1.Service, port networkingv1.ServiceBackendPort) bool {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return true
	}
	for _, p := range service.Spec.Ports {
		if port.Name != "" && p.Name == port.Name || port.Name == "" && p.Port == port.Number {
			return true
		}
	}
	return false
}

func (s *surroundings) noIngressClass(ctx context.Context, name string) bool {
	if len(rest.IsValidPathSegmentName(name)) > 0 {
		return true
	}
	_, err := s.client.NetworkingV1().IngressClasses().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}
