package controlplane_test

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// Every cluster has Kubernetes' own flow schemas, and each of them refers to an existing level.
func TestBootstrap_HasFlowSchemasAndTheirLevels(t *testing.T) {
	t.Parallel()
	client := servertest.Start(t, apiserver.Options{}).Client(t).FlowcontrolV1()
	levels, err := client.PriorityLevelConfigurations().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, l := range levels.Items {
		names = append(names, l.Name)
		require.Equal(t, "true", l.Annotations[flowv1.AutoUpdateAnnotationKey], l.Name)
		require.Equal(t, l.Name == "exempt", l.Spec.Type == flowv1.PriorityLevelEnablementExempt, l.Name)
	}
	require.Equal(t, []string{"catch-all", "exempt", "global-default", "leader-election", "node-high", "system",
		"workload-high", "workload-low"}, names)

	schemas, err := client.FlowSchemas().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, schemas.Items, 15)
	for _, s := range schemas.Items {
		require.True(t, slices.Contains(names, s.Spec.PriorityLevelConfiguration.Name), s.Name)
		require.Equal(t, flowv1.ConditionFalse, s.Status.Conditions[0].Status, s.Name)
		// They pass their own validation.
		s.Labels = map[string]string{"a": "b"}
		_, err := client.FlowSchemas().Update(t.Context(), &s, metav1.UpdateOptions{})
		require.NoError(t, err, s.Name)
	}
}

func TestOwnService_PointsToTheServer(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, apiserver.Options{AdvertiseAddress: netip.MustParseAddr("192.0.2.7")})
	port := netip.MustParseAddrPort(s.Config.Host[len("https://"):]).Port()
	client, ctx := s.Client(t), t.Context()
	own, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "10.96.0.1", own.Spec.ClusterIP)
	require.EqualValues(t, port, own.Spec.Ports[0].TargetPort.IntVal)
	endpoints, err := client.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{}) //nolint:staticcheck // the server publishes it
	require.NoError(t, err)
	require.Equal(t, "192.0.2.7", endpoints.Subsets[0].Addresses[0].IP)
	require.EqualValues(t, port, endpoints.Subsets[0].Ports[0].Port)
	slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.7"}, slice.Endpoints[0].Addresses)
	cidr, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"10.96.0.0/16"}, cidr.Spec.CIDRs)
	ip, err := client.NetworkingV1().IPAddresses().Get(ctx, "10.96.0.1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "kubernetes", ip.Spec.ParentRef.Name)
}

func TestServer_HasALease(t *testing.T) {
	t.Parallel()
	leases := servertest.Start(t, apiserver.Options{}).Client(t).CoordinationV1().Leases("kube-system")
	identity := func() coordinationv1.Lease {
		list, err := leases.List(t.Context(),
			metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		return list.Items[0]
	}
	lease := identity()
	hostname, err := os.Hostname()
	require.NoError(t, err)
	require.Regexp(t, "^apiserver-[a-z2-7]{26}$", lease.Name)
	require.Equal(t, hostname, lease.Labels["kubernetes.io/hostname"])
	require.True(t, strings.HasPrefix(*lease.Spec.HolderIdentity, lease.Name+"_"))
	require.EqualValues(t, 3600, *lease.Spec.LeaseDurationSeconds)
	require.WithinDuration(t, time.Now(), lease.Spec.RenewTime.Time, time.Minute)
	require.Eventually(t, func() bool {
		return identity().Spec.RenewTime.After(lease.Spec.RenewTime.Time)
	}, patience, 100*time.Millisecond, "it is renewed")
}

// A start restores an object that was deleted, and does not change one that was changed.
func TestBootstrap_WritesMissingObjects(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	client, ctx := servertest.Start(t, apiserver.Options{Store: store}).Client(t), t.Context()
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		_, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err, name)
	}
	classes := client.SchedulingV1().PriorityClasses()
	require.NoError(t, classes.Delete(ctx, "system-node-critical", metav1.DeleteOptions{}))
	changed, err := classes.Get(ctx, "system-cluster-critical", metav1.GetOptions{})
	require.NoError(t, err)
	changed.Labels = map[string]string{"a": "b"}
	changed, err = classes.Update(ctx, changed, metav1.UpdateOptions{})
	require.NoError(t, err)

	servertest.Start(t, apiserver.Options{Store: store})
	again, err := classes.Get(ctx, "system-node-critical", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2000001000, again.Value)
	after, err := classes.Get(ctx, "system-cluster-critical", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, changed.ResourceVersion, after.ResourceVersion)
}

// The Service no longer points to a server that has ended; its Lease stays.
func TestLeave_RemovesTheServer(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	stays := servertest.Start(t, apiserver.Options{Store: store,
		AdvertiseAddress: netip.MustParseAddr("192.0.2.7")}).Client(t)
	addresses := func() (found []string) {
		all, err := stays.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}) //nolint:staticcheck // an EndpointSlice has one port
		require.NoError(t, err)
		for _, subset := range all.Subsets {
			for _, address := range subset.Addresses {
				found = append(found, address.IP)
			}
		}
		return found
	}
	t.Run("of two", func(t *testing.T) {
		servertest.Start(t, apiserver.Options{Store: store, AdvertiseAddress: netip.MustParseAddr("192.0.2.8")})
		require.ElementsMatch(t, []string{"192.0.2.7", "192.0.2.8"}, addresses())
	})
	require.Eventually(t, func() bool { return slices.Equal(addresses(), []string{"192.0.2.7"}) }, patience, tick)
	leases, err := stays.CoordinationV1().Leases("kube-system").List(t.Context(),
		metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	require.NoError(t, err)
	require.Len(t, leases.Items, 2)
}

// A server whose address is not known at its start has no endpoint until it is, and one endpoint after each change.
func TestAdvertise_ReplacesTheEndpoint(t *testing.T) {
	t.Parallel()
	store := servertest.Store(t, servertest.Backend(t), storage.Options{})
	other := servertest.Start(t, apiserver.Options{Store: store, AdvertiseAddress: netip.MustParseAddr("192.0.2.9")})
	client := other.Client(t)
	addresses := func() (found []string) {
		all, err := client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}) //nolint:staticcheck // an EndpointSlice has one port
		require.NoError(t, err)
		for _, subset := range all.Subsets {
			for _, address := range subset.Addresses {
				found = append(found, address.IP)
			}
		}
		return found
	}
	t.Run("of one", func(t *testing.T) {
		s := servertest.Start(t, apiserver.Options{Store: store, AdvertiseLater: true})
		require.Equal(t, []string{"192.0.2.9"}, addresses())
		for _, ip := range []string{"10.244.0.1", "10.244.1.1", "10.244.1.1", "10.244.0.1"} {
			s.Advertise(t.Context(), netip.MustParseAddr(ip))
			require.ElementsMatch(t, []string{"192.0.2.9", ip}, addresses())
		}
	})
	require.Eventually(t, func() bool { return slices.Equal(addresses(), []string{"192.0.2.9"}) }, patience, tick,
		"the server has left")
}
