package webhook

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

// fixed has one service with its slices.
type fixed struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

func (f fixed) Object(_ context.Context, _ schema.GroupVersionKind, namespace, name string) (api.Object, error) {
	if f.service == nil || namespace != "shop" || name != "hook" {
		return nil, errors.New("not found")
	}
	return f.service, nil
}

func (f fixed) EndpointSlices(context.Context, string, string) ([]*discoveryv1.EndpointSlice, error) {
	return f.slices, nil
}

func service(change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hook"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Name: "https", Port: 8443}, {Name: "other", Port: 1}}}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func slice(ready *bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{
		{Name: new("other"), Port: new(int32(1))}, {Name: new("https"), Port: new(int32(9443))}, {Name: new("https")}, {}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a},
			Conditions: discoveryv1.EndpointConditions{Ready: ready}})
	}
	return s
}

func services(t *testing.T, addresses ...string) serviceresolver.Reader {
	t.Helper()
	return fixed{service(nil), []*discoveryv1.EndpointSlice{slice(nil, addresses...)}}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	six := slice(nil, "fd00::1")
	six.AddressType = discoveryv1.AddressTypeIPv6
	list := func(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }
	for name, c := range map[string]struct {
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		port    int32
		want    []string
		err     string
	}{
		"ready endpoints": {service(nil), list(slice(new(false), "10.1.0.1"), slice(new(true), "10.1.0.2", "10.1.0.3"),
			slice(nil, "10.1.0.4"), six), 8443, []string{"10.1.0.2:9443", "10.1.0.3:9443", "10.1.0.4:9443"}, ""},
		"of the other family, if there are no others": {service(nil), list(slice(new(false), "10.1.0.1"), six), 8443,
			[]string{"[fd00::1]:9443"}, ""},
		"the other port": {service(nil), list(slice(nil, "10.1.0.1")), 1, []string{"10.1.0.1:1"}, ""},
		"no such port": {service(nil), list(slice(nil, "10.1.0.1")), 0, nil,
			`no service port 443 found for service "hook"`},
		"none ready": {service(nil), list(slice(new(false), "10.1.0.1")), 8443, nil,
			`no endpoints available for service "hook"`},
		"no slices: the cluster IP": {service(nil), nil, 8443, []string{"10.0.0.1:8443"}, ""},
		"no slices and no cluster IP": {service(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }), nil,
			8443, nil, "no endpoints available"},
		"ExternalName": {service(func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "hooks.example.com"
		}), nil, 0, []string{"hooks.example.com:443"}, ""},
		"no service": {nil, nil, 8443, nil, "not found"},
	} {
		found := map[string]bool{}
		for range 100 {
			address, err := resolve(t.Context(), fixed{c.service, c.slices},
				&Service{Namespace: "shop", Name: "hook", Port: c.port})
			if c.err != "" {
				require.ErrorContains(t, err, c.err, name)
				continue
			}
			require.NoError(t, err, name)
			require.Contains(t, c.want, address, name)
			found[address] = true
		}
		require.Len(t, found, len(c.want), name)
	}
}
