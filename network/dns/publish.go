package dns

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// The Service at which pods find the server, by the name that all charts of DNS servers give it.
const (
	serviceNamespace = "kube-system"
	serviceName      = "kube-dns"
	sliceName        = "kube-dns-coxswain"
	metricsPort      = 9153
)

// manager is the value of the labels that mark the Service and the EndpointSlice as those of Publish.
const manager = "dns.coxswain.dev"

// managedBy marks the Service, as charts do it.
const managedBy = "app.kubernetes.io/managed-by"

// publishEvery is how often the published objects are looked at.
const publishEvery = 30 * time.Second

// Publish keeps the Service kube-system/kube-dns at a cluster IP, whose ports lead to a server at endpoint, and to its
// metrics at port metrics of the same address; 0 where they are not served there. It goes on until ctx ends. The
// Service is made if there is none. One that others have made, such as a chart's, is left alone, and gets no endpoint.
// Failures are logged by o.Log and tried again by o.Clock; nothing else of o is used.
//
// The client needs to get and create Services and EndpointSlices in kube-system, and to update the slice
// kube-dns-coxswain there, as the user coxswain:dns-publisher may.
func Publish(ctx context.Context, client kubernetes.Interface, ip netip.Addr, endpoint netip.AddrPort, metrics uint16,
	o Options) {
	o.defaults()
	for {
		if err := publish(ctx, client, ip, endpoint, metrics); err != nil && ctx.Err() == nil {
			o.Log.Warn("publishing the DNS server", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-o.Clock.After(publishEvery):
		}
	}
}

func publish(ctx context.Context, client kubernetes.Interface, ip netip.Addr, endpoint netip.AddrPort,
	metrics uint16) error {
	services := client.CoreV1().Services(serviceNamespace)
	service, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		service, err = services.Create(ctx, dnsService(ip, metrics), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("service %s/%s: %w", serviceNamespace, serviceName, err)
	}
	if service.Labels[managedBy] != manager {
		return nil
	}
	want := dnsSlice(service, endpoint, metrics)
	slices := client.DiscoveryV1().EndpointSlices(serviceNamespace)
	slice, err := slices.Get(ctx, sliceName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !sameSlice(slice, want):
		want.ResourceVersion = slice.ResourceVersion
		_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("endpoint slice %s/%s: %w", serviceNamespace, sliceName, err)
	}
	return nil
}

// sameSlice compares what Publish sets. The address type of a slice cannot change.
func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return reflect.DeepEqual(a.Labels, b.Labels) && reflect.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		reflect.DeepEqual(a.Endpoints, b.Endpoints) && reflect.DeepEqual(a.Ports, b.Ports)
}

// dnsService is the Service, as kubeadm's is except for the selector.
func dnsService(ip netip.Addr, metrics uint16) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: serviceName, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
			managedBy: manager,
		}},
		Spec: corev1.ServiceSpec{ClusterIP: ip.String(), Ports: []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53},
		}},
	}
	if metrics != 0 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "metrics", Protocol: corev1.ProtocolTCP,
			Port: metricsPort})
	}
	return s
}

// dnsSlice leads the Service's ports to the server. It goes with the Service.
func dnsSlice(service *corev1.Service, endpoint netip.AddrPort, metrics uint16) *discoveryv1.EndpointSlice {
	of := discoveryv1.AddressTypeIPv4
	if endpoint.Addr().Is6() {
		of = discoveryv1.AddressTypeIPv6
	}
	port := func(name string, protocol corev1.Protocol, number uint16) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: ptr.To(int32(number))}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: sliceName,
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name,
				UID: service.UID}}},
		AddressType: of,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint.Addr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports: []discoveryv1.EndpointPort{port("dns", corev1.ProtocolUDP, endpoint.Port()),
			port("dns-tcp", corev1.ProtocolTCP, endpoint.Port())},
	}
	if metrics != 0 {
		slice.Ports = append(slice.Ports, port("metrics", corev1.ProtocolTCP, metrics))
	}
	return slice
}
