package serviceresolver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

func TestReady_ReturnsOnlyUsableAddresses(t *testing.T) {
	t.Parallel()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(9443))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1", "10.1.0.2"}}, {Addresses: nil}}}
	endpointSlices := []*discoveryv1.EndpointSlice{slice}
	address, err := serviceresolver.Ready(service, endpointSlices, "https", nil)
	require.NoError(t, err)
	require.Equal(t, "10.1.0.1:9443", address)
	address, err = serviceresolver.Ready(service, endpointSlices, "https", func(e *discoveryv1.Endpoint) []string {
		if len(e.Addresses) == 0 {
			return nil
		}
		return e.Addresses[1:]
	})
	require.NoError(t, err)
	require.Equal(t, "10.1.0.2:9443", address)
	_, err = serviceresolver.Ready(service, endpointSlices, "https", func(*discoveryv1.Endpoint) []string { return nil })
	require.ErrorContains(t, err, `no endpoints available for service "web"`)
}
