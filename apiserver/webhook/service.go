package webhook

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
)

// Objects reads what services are resolved by.
type Objects interface {
	// Object returns an object, or an error for one that does not exist.
	Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (api.Object, error)
	// EndpointSlices returns the slices of a service.
	EndpointSlices(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error)
}

var serviceKind = corev1.SchemeGroupVersion.WithKind("Service")

// resolve returns the address of a random one of the ready endpoints behind the service's port. The cluster IP is the
// address of a service that has no EndpointSlices at all: some program on this machine may know where it leads. Whoever
// answers has to show a certificate of the service's name.
func resolve(ctx context.Context, objects Objects, s *Service) (string, error) {
	obj, err := objects.Object(ctx, serviceKind, s.Namespace, s.Name)
	if err != nil {
		return "", err
	}
	service := obj.(*corev1.Service)
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(s.port()))), nil
	}
	at := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == s.port() })
	if at < 0 {
		return "", apierrors.NewServiceUnavailable(
			fmt.Sprintf("no service port %d found for service %q", s.port(), s.Name))
	}
	of, err := objects.EndpointSlices(ctx, s.Namespace, s.Name)
	if err != nil {
		return "", err
	}
	if targets := ready(service, of, service.Spec.Ports[at].Name); len(targets) > 0 {
		return targets[rand.IntN(len(targets))], nil
	}
	if ip := service.Spec.ClusterIP; len(of) == 0 && ip != "" && ip != corev1.ClusterIPNone {
		return net.JoinHostPort(ip, strconv.Itoa(int(s.port()))), nil
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", s.Name))
}

// ready are the addresses of the ready endpoints of a port: those of the service's first IP family, if there are any.
func ready(service *corev1.Service, of []*discoveryv1.EndpointSlice, port string) []string {
	var first, others []string
	for _, slice := range of {
		to := &others
		families := service.Spec.IPFamilies
		if len(families) == 0 || slice.AddressType == discoveryv1.AddressType(families[0]) {
			to = &first
		}
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name == nil && port != "" || p.Name != nil && *p.Name != port {
				continue
			}
			for _, e := range slice.Endpoints {
				if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					*to = append(*to, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(first) > 0 {
		return first
	}
	return others
}
