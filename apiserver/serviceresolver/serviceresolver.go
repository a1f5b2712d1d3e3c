// Package serviceresolver finds the addresses behind a port of a Service, for all callers of Services: webhooks,
// aggregated API servers and …/services/NAME/proxy. A name comes in, the address of one ready endpoint goes out. It is
// looked up for each call, without a cache. The server and storage must not be imported.
package serviceresolver

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

// Reader reads the objects that services are resolved by.
type Reader interface {
	// Object returns an object of a kind, or a Status as the error for one that does not exist.
	Object(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (api.Object, error)
	// EndpointSlices returns the slices of a service.
	EndpointSlices(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error)
}

var serviceKind = corev1.SchemeGroupVersion.WithKind("Service")

// Service returns a Service, or a Status as the error.
func Service(ctx context.Context, objects Reader, namespace, name string) (*corev1.Service, error) {
	obj, err := objects.Object(ctx, serviceKind, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Service), nil
}

// Resolve returns the address (host:port) of a random one of the ready endpoints behind a service's port. The cluster
// IP is the address of a service that has no EndpointSlices at all: some program on this machine may know where it
// leads. The name of a service of type ExternalName is its address. Every user with the right to write a slice decides
// where the address leads: the caller must require a certificate of the service's name.
func Resolve(ctx context.Context, objects Reader, namespace, name string, port int32) (string, error) {
	service, err := Service(ctx, objects, namespace, name)
	if err != nil {
		return "", err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(service.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	portName, err := PortName(service, int64(port))
	if err != nil {
		return "", err
	}
	endpointSlices, err := objects.EndpointSlices(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	if ip := service.Spec.ClusterIP; len(endpointSlices) == 0 && ip != "" && ip != corev1.ClusterIPNone {
		return net.JoinHostPort(ip, strconv.Itoa(int(port))), nil
	}
	return Ready(service, endpointSlices, portName, nil)
}

// PortName returns the name of a service's port, "" if it has none. The error is a Status.
func PortName(service *corev1.Service, port int64) (string, error) {
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == port })
	if i < 0 {
		return "", apierrors.NewServiceUnavailable(
			fmt.Sprintf("no service port %d found for service %q", port, service.Name))
	}
	return service.Spec.Ports[i].Name, nil
}

// Ready returns the address of a random one of the ready endpoints behind a port's name: one of the service's first IP
// family, if there is any. usable returns which of an endpoint's addresses may be used; nil is the first. The error is
// a Status.
func Ready(service *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice, port string,
	usable func(*discoveryv1.Endpoint) []string) (string, error) {
	var first, others []string
	families := service.Spec.IPFamilies
	for _, slice := range endpointSlices {
		if len(families) == 0 || slice.AddressType == discoveryv1.AddressType(families[0]) {
			first = appendReady(first, slice, port, usable)
		} else {
			others = appendReady(others, slice, port, usable)
		}
	}
	if len(first) == 0 {
		first = others
	}
	if len(first) == 0 {
		return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service.Name))
	}
	return first[rand.IntN(len(first))], nil
}

func appendReady(addresses []string, slice *discoveryv1.EndpointSlice, port string,
	usable func(*discoveryv1.Endpoint) []string) []string {
	for _, p := range slice.Ports {
		if p.Port == nil || p.Name == nil && port != "" || p.Name != nil && *p.Name != port {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			ips := e.Addresses[:min(1, len(e.Addresses))]
			if usable != nil {
				ips = usable(e)
			}
			for _, ip := range ips {
				addresses = append(addresses, net.JoinHostPort(ip, strconv.Itoa(int(*p.Port))))
			}
		}
	}
	return addresses
}
