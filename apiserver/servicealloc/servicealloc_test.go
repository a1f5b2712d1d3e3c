package servicealloc_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

const (
	single   = corev1.IPFamilyPolicySingleStack
	prefer   = corev1.IPFamilyPolicyPreferDualStack
	mustDual = corev1.IPFamilyPolicyRequireDualStack
	v4       = corev1.IPv4Protocol
	v6       = corev1.IPv6Protocol
)

var dualStack = apiserver.Options{ServiceCIDRs: []netip.Prefix{
	netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("fd00:96::/112"),
}}

const (
	// patience is how long a test waits for a server, and tick how often it polls.
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

// serve starts a server and returns an administrator's client.
func serve(t *testing.T, o apiserver.Options) *kubernetes.Clientset {
	t.Helper()
	return servertest.Start(t, o).Client(t)
}

func newService(name string, kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}},
			Selector: map[string]string{"app": name}},
	}
}

// causes returns the causes of an Invalid error as field and message.
func causes(t *testing.T, err error) []string {
	t.Helper()
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	var all []string
	for _, c := range err.(apierrors.APIStatus).Status().Details.Causes {
		all = append(all, c.Field+": "+c.Message)
	}
	return all
}

func familiesOf(ips []string) []corev1.IPFamily {
	var all []corev1.IPFamily
	for _, ip := range ips {
		family := v4
		if addr, err := netip.ParseAddr(ip); err == nil && addr.Is6() {
			family = v6
		}
		all = append(all, family)
	}
	return all
}

func TestService_Families(t *testing.T) {
	t.Parallel()
	dual := serve(t, dualStack).CoreV1().Services("default")
	one := serve(t, apiserver.Options{}).CoreV1().Services("default")
	for name, c := range map[string]struct {
		in       typedcorev1.ServiceInterface
		spec     corev1.ServiceSpec
		policy   corev1.IPFamilyPolicy
		families []corev1.IPFamily
		refused  string
	}{
		"default": {in: dual, policy: single, families: []corev1.IPFamily{v4}},
		"single v6": {in: dual, spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{v6}},
			policy: single, families: []corev1.IPFamily{v6}},
		"prefer": {in: dual, spec: corev1.ServiceSpec{IPFamilyPolicy: new(prefer)}, policy: prefer,
			families: []corev1.IPFamily{v4, v6}},
		"require v6 first": {in: dual, spec: corev1.ServiceSpec{IPFamilyPolicy: new(mustDual),
			IPFamilies: []corev1.IPFamily{v6}}, policy: mustDual, families: []corev1.IPFamily{v6, v4}},
		"of the address": {in: dual, spec: corev1.ServiceSpec{ClusterIP: "fd00:96::77"}, policy: single,
			families: []corev1.IPFamily{v6}},
		"two addresses": {in: dual, spec: corev1.ServiceSpec{IPFamilyPolicy: new(prefer),
			ClusterIPs: []string{"10.96.0.77", "fd00:96::78"}, ClusterIP: "10.96.0.77"}, policy: prefer,
			families: []corev1.IPFamily{v4, v6}},
		"two addresses, no policy": {in: dual,
			spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.79", "fd00:96::79"}, ClusterIP: "10.96.0.79"},
			refused: "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or " +
				"'PreferDualStack' when multiple cluster IPs are specified"},
		"two families, no policy": {in: dual, spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{v4, v6}},
			refused: "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or " +
				"'PreferDualStack' when multiple IP families are specified"},
		"address of another family": {in: dual, spec: corev1.ServiceSpec{ClusterIP: "10.96.0.80",
			IPFamilies: []corev1.IPFamily{v6}}, refused: "spec.clusterIPs[0]: Invalid value: \"10.96.0.80\": " +
			"expected an IPv6 value as indicated by `ipFamilies[0]`"},
		"out of range": {in: dual, spec: corev1.ServiceSpec{ClusterIP: "10.97.0.1"},
			refused: "spec.clusterIPs: Invalid value: [\"10.97.0.1\"]: failed to allocate IP 10.97.0.1: the " +
				"provided network does not match the current range"},
		"broadcast": {in: dual, spec: corev1.ServiceSpec{ClusterIP: "10.96.0.255"},
			refused: "spec.clusterIPs: Invalid value: [\"10.96.0.255\"]: failed to allocate IP 10.96.0.255: the " +
				"provided IP (10.96.0.255) is not in the valid range. The range of valid IPs is 10.96.0.0/24"},
		"taken": {in: dual, spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"},
			refused: "spec.clusterIPs: Invalid value: [\"10.96.0.1\"]: failed to allocate IP 10.96.0.1: provided " +
				"IP is already allocated"},
		"require on one family": {in: one, spec: corev1.ServiceSpec{IPFamilyPolicy: new(mustDual)},
			refused: "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured " +
				"for dual-stack services"},
		"v6 on one family": {in: one, spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{v6}},
			refused: "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"},
		"v6 address on one family": {in: one, spec: corev1.ServiceSpec{ClusterIP: "fd00::1"},
			refused: "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster"},
		"prefer on one family": {in: one, spec: corev1.ServiceSpec{IPFamilyPolicy: new(prefer)}, policy: prefer,
			families: []corev1.IPFamily{v4}},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Ports, c.spec.Selector = []corev1.ServicePort{{Port: 80}}, map[string]string{"a": "b"}
			s, err := c.in.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"},
				Spec: c.spec}, metav1.CreateOptions{})
			if c.refused != "" {
				require.Equal(t, []string{c.refused}, causes(t, err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.policy, *s.Spec.IPFamilyPolicy)
			require.Equal(t, c.families, s.Spec.IPFamilies)
			require.Equal(t, c.families, familiesOf(s.Spec.ClusterIPs), "%v", s.Spec.ClusterIPs)
			require.Equal(t, s.Spec.ClusterIPs[0], s.Spec.ClusterIP)
		})
	}
	headless := newService("headless", corev1.ServiceTypeClusterIP)
	headless.Spec.ClusterIP, headless.Spec.Selector = corev1.ClusterIPNone, nil
	s, err := one.Create(t.Context(), headless, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, mustDual, *s.Spec.IPFamilyPolicy, "nobody knows what its endpoints are")
	require.Equal(t, []corev1.IPFamily{v4, v6}, s.Spec.IPFamilies)
	require.Equal(t, []string{corev1.ClusterIPNone}, s.Spec.ClusterIPs)
}

func TestService_AddressesFollowItsTypeAndPolicy(t *testing.T) {
	t.Parallel()
	client := serve(t, dualStack)
	services, ctx := client.CoreV1().Services("default"), t.Context()
	reserved := func() []string {
		list, err := client.NetworkingV1().IPAddresses().List(ctx,
			metav1.ListOptions{FieldSelector: "spec.parentRef.name=a"})
		require.NoError(t, err)
		var names []string
		for _, ip := range list.Items {
			require.Equal(t, "ipallocator.k8s.io", ip.Labels["ipaddress.kubernetes.io/managed-by"])
			require.Equal(t, "services/default/a", ip.Spec.ParentRef.Resource+"/"+ip.Spec.ParentRef.Namespace+"/"+
				ip.Spec.ParentRef.Name)
			names = append(names, ip.Name)
		}
		return names
	}
	s, err := services.Create(ctx, newService("a", corev1.ServiceTypeLoadBalancer), metav1.CreateOptions{})
	require.NoError(t, err)
	first := s.Spec.ClusterIP
	require.Equal(t, []string{first}, reserved())

	s.Spec.IPFamilyPolicy = new(mustDual)
	s, err = services.Update(ctx, s, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, first, s.Spec.ClusterIPs[0])
	require.ElementsMatch(t, s.Spec.ClusterIPs, reserved())
	require.Len(t, s.Spec.ClusterIPs, 2)

	less := s.DeepCopy()
	less.Spec.ClusterIPs = less.Spec.ClusterIPs[:1]
	_, err = services.Update(ctx, less, metav1.UpdateOptions{})
	require.Equal(t, []string{"spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to " +
		"release the secondary cluster IP"}, causes(t, err))

	s.Spec.IPFamilyPolicy = new(single)
	s, err = services.Update(ctx, s, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{first}, s.Spec.ClusterIPs)
	require.Equal(t, []corev1.IPFamily{v4}, s.Spec.IPFamilies)
	require.Equal(t, []string{first}, reserved())

	other := s.DeepCopy()
	other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.96.0.99", []string{"10.96.0.99"}
	_, err = services.Update(ctx, other, metav1.UpdateOptions{})
	require.Equal(t, []string{`spec.clusterIPs[0]: Invalid value: ["10.96.0.99"]: may not change once set`},
		causes(t, err))

	s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	s, err = services.Update(ctx, s, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Empty(t, s.Spec.ClusterIPs)
	require.Empty(t, reserved())

	s.Spec = newService("a", corev1.ServiceTypeClusterIP).Spec
	s, err = services.Update(ctx, s, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, s.Spec.ClusterIPs, reserved())
	require.NoError(t, services.Delete(ctx, "a", metav1.DeleteOptions{}))
	require.Empty(t, reserved())
}

func TestService_ProtocolsShareNodePorts(t *testing.T) {
	t.Parallel()
	services := serve(t, apiserver.Options{NodePorts: net.PortRange{Base: 31000, Size: 3}}).CoreV1().Services("default")
	ctx := t.Context()
	dns := newService("dns", corev1.ServiceTypeLoadBalancer)
	dns.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	dns.Spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		{Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}}
	dns, err := services.Create(ctx, dns, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, dns.Spec.Ports[0].NodePort, dns.Spec.Ports[1].NodePort)
	require.NotZero(t, dns.Spec.HealthCheckNodePort)
	require.NotEqual(t, dns.Spec.Ports[0].NodePort, dns.Spec.HealthCheckNodePort)

	_, err = services.Create(ctx, newService("third", corev1.ServiceTypeNodePort), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = services.Create(ctx, newService("fourth", corev1.ServiceTypeNodePort), metav1.CreateOptions{})
	require.True(t, apierrors.IsInternalError(err), "%v", err)

	dns.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	dns, err = services.Update(ctx, dns, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Zero(t, dns.Spec.HealthCheckNodePort)
	_, err = services.Create(ctx, newService("fourth", corev1.ServiceTypeNodePort), metav1.CreateOptions{})
	require.NoError(t, err, "the port is free again")

	out := newService("out", corev1.ServiceTypeNodePort)
	out.Spec.Ports[0].NodePort = 30000
	_, err = services.Create(ctx, out, metav1.CreateOptions{})
	require.Equal(t, []string{"spec.ports[0].nodePort: Invalid value: 30000: provided port is not in the valid " +
		"range. The range of valid ports is 31000-31002"}, causes(t, err))
	out.Spec.Ports[0].NodePort = dns.Spec.Ports[0].NodePort
	_, err = services.Create(ctx, out, metav1.CreateOptions{})
	require.Len(t, causes(t, err), 1)
	require.Contains(t, err.Error(), "provided port is already allocated")
}

func TestServiceCIDR_WithOneAddressProvidesNone(t *testing.T) {
	t.Parallel()
	client := serve(t, apiserver.Options{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/29")}})
	services := client.CoreV1().Services("default")
	_, err := client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.200.0.7/32"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	chosen := newService("chosen", corev1.ServiceTypeClusterIP)
	chosen.Spec.ClusterIP = "10.200.0.7"
	require.Eventually(t, func() bool { // the watch delivers the range asynchronously
		_, err := services.Create(t.Context(), chosen, metav1.CreateOptions{})
		require.Error(t, err)
		return strings.Contains(err.Error(), "The range of valid IPs is 10.200.0.7/32")
	}, patience, tick)
	for _, name := range []string{"a", "b", "c", "d", "e"} { // the server's own Service has the sixth address
		made, err := services.Create(t.Context(), newService(name, corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
		require.NoError(t, err)
		require.Contains(t, made.Spec.ClusterIP, "10.96.0.")
	}
	_, err = services.Create(t.Context(), newService("more", corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
	require.ErrorContains(t, err, "range is full")
}

func TestServiceCIDR_AddsToTheRange(t *testing.T) {
	t.Parallel()
	client := serve(t, apiserver.Options{})
	_, err := client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.200.0.0/24"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	service := newService("a", corev1.ServiceTypeClusterIP)
	service.Spec.ClusterIP = "10.200.0.9"
	require.Eventually(t, func() bool { // the watch delivers the range asynchronously
		_, err := client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
		return err == nil
	}, patience, tick)
}

// Manual changes to the reservations are repaired when a server starts.
func TestRepair_FreesAndReservesAgain(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	client, ctx := serve(t, apiserver.Options{Store: store}), t.Context()
	service, err := client.CoreV1().Services("default").Create(ctx, newService("a", corev1.ServiceTypeNodePort),
		metav1.CreateOptions{})
	require.NoError(t, err)
	ips := client.NetworkingV1().IPAddresses()
	require.NoError(t, ips.Delete(ctx, service.Spec.ClusterIP, metav1.DeleteOptions{}))
	stray, err := ips.Get(ctx, "10.96.0.1", metav1.GetOptions{})
	require.NoError(t, err)
	stray.ObjectMeta = metav1.ObjectMeta{Name: "10.96.9.9", Labels: stray.Labels}
	stray.Spec.ParentRef.Name = "gone"
	_, err = ips.Create(ctx, stray, metav1.CreateOptions{})
	require.NoError(t, err)
	foreign := stray.DeepCopy()
	foreign.Name, foreign.Labels = "10.96.9.10", nil
	_, err = ips.Create(ctx, foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = store.Commit(ctx,
		storage.Write{Op: storage.Create, Key: storage.Key{Collection: "claims/nodeports", Name: "30001"},
			Value: []byte(`{"metadata":{"name":"30001"},"holder":"default/gone"}`)})
	require.NoError(t, err)

	servertest.Start(t, apiserver.Options{Store: store})
	require.Eventually(t, func() bool {
		_, err := ips.Get(ctx, service.Spec.ClusterIP, metav1.GetOptions{})
		_, strayErr := ips.Get(ctx, "10.96.9.9", metav1.GetOptions{})
		return err == nil && apierrors.IsNotFound(strayErr)
	}, patience, tick)
	_, err = ips.Get(ctx, "10.96.9.10", metav1.GetOptions{})
	require.NoError(t, err, "what is nobody's claim is left alone")
	require.Eventually(t, func() bool {
		port := newService("b", corev1.ServiceTypeNodePort)
		port.Spec.Ports[0].NodePort = 30001
		_, err := client.CoreV1().Services("default").Create(context.WithoutCancel(ctx), port, metav1.CreateOptions{})
		return err == nil
	}, patience, tick, "the port that nobody holds")
}
