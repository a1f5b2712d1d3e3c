package diagnose

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Backend is a Service and the requests that an Ingress sends to it.
type Backend struct {
	What    string // host and path, or a text for the default backend
	Service *networkingv1.IngressServiceBackend
}

// BackendsOf lists the Services of an Ingress, one entry for each path.
func BackendsOf(ingress *networkingv1.Ingress) (all []Backend) {
	if d := ingress.Spec.DefaultBackend; d != nil && d.Service != nil {
		all = append(all, Backend{"what no rule matches", d.Service})
	}
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, path := range rule.HTTP.Paths {
			if path.Backend.Service != nil {
				all = append(all, Backend{rule.Host + path.Path, path.Backend.Service})
			}
		}
	}
	return all
}

// HasPort reports whether a Service has a port by its name or number. An ExternalName has the ports of its host.
func HasPort(service *corev1.Service, port networkingv1.ServiceBackendPort) bool {
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
