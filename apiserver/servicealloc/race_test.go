package servicealloc_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestService_HasAUniqueAddressUntilDeleted(t *testing.T) {
	t.Parallel()
	services := serve(t, apiserver.Options{}).CoreV1().Services("default")
	ctx := t.Context()

	made, err := services.Create(ctx, newService("a", corev1.ServiceTypeClusterIP), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, made.Spec.ClusterIP)
	require.Equal(t, []string{made.Spec.ClusterIP}, made.Spec.ClusterIPs)
	require.Equal(t, []corev1.IPFamily{corev1.IPv4Protocol}, made.Spec.IPFamilies)

	same := newService("b", corev1.ServiceTypeClusterIP)
	same.Spec.ClusterIP = made.Spec.ClusterIP
	_, err = services.Create(ctx, same, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "a taken address: %v", err)

	require.NoError(t, services.Delete(ctx, "a", metav1.DeleteOptions{}))
	got, err := services.Create(ctx, same, metav1.CreateOptions{})
	require.NoError(t, err, "the address is free again")
	require.Equal(t, made.Spec.ClusterIP, got.Spec.ClusterIP)
}

func TestService_PortsFollowItsType(t *testing.T) {
	t.Parallel()
	services := serve(t, apiserver.Options{}).CoreV1().Services("default")
	ctx := t.Context()

	s, err := services.Create(ctx, newService("a", corev1.ServiceTypeNodePort), metav1.CreateOptions{})
	require.NoError(t, err)
	port := s.Spec.Ports[0].NodePort
	require.GreaterOrEqual(t, port, int32(30000))

	s.Spec.Type = corev1.ServiceTypeClusterIP
	s.Spec.Ports[0].NodePort = 0
	s, err = services.Update(ctx, s, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Zero(t, s.Spec.Ports[0].NodePort)

	other := newService("b", corev1.ServiceTypeNodePort)
	other.Spec.Ports[0].NodePort = port
	_, err = services.Create(ctx, other, metav1.CreateOptions{})
	require.NoError(t, err, "the port is free again")

	out := newService("c", corev1.ServiceTypeNodePort)
	out.Spec.Ports[0].NodePort = 80
	_, err = services.Create(ctx, out, metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "out of range: %v", err)
}

func TestService_RacingCreatesNeverShareAnAddress(t *testing.T) {
	t.Parallel()
	client := serve(t, apiserver.Options{})
	const n = 50
	address := "10.96.7.7"
	var made sync.Map
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			s := newService(fmt.Sprintf("s-%d", i), corev1.ServiceTypeClusterIP)
			s.Spec.ClusterIP = address
			if got, err := client.CoreV1().Services("default").Create(context.Background(), s,
				metav1.CreateOptions{}); err == nil {
				made.Store(got.Name, got.Spec.ClusterIP)
			}
		})
	}
	group.Wait()
	count := 0
	made.Range(func(_, _ any) bool { count++; return true })
	require.Equal(t, 1, count)
}

// Two servers learn about each other's Services from etcd with a delay, and allocate from small ranges.
func TestService_RacingServersNeverShareAnAddressOrAPort(t *testing.T) {
	t.Parallel()
	const each, size = 12, 2*12 + 2
	o := func() apiserver.Options {
		return apiserver.Options{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/27")},
			NodePorts: utilnet.PortRange{Base: 31000, Size: size}}
	}
	backend := servertest.Backend(t)
	var servers []*kubernetes.Clientset
	for range 2 {
		o := o()
		o.Store = servertest.Store(t, backend, storage.Options{})
		servers = append(servers, serve(t, o))
	}

	var mu sync.Mutex
	addresses, ports, won := map[string]int{}, map[int32]int{}, 0
	var group sync.WaitGroup
	create := func(server int, name, ip string, port int32) {
		group.Go(func() {
			s := newService(name, corev1.ServiceTypeNodePort)
			s.Spec.ClusterIP, s.Spec.Ports[0].NodePort = ip, port
			got, err := servers[server].CoreV1().Services("default").Create(context.Background(), s,
				metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if ip != "" {
				if err == nil {
					won++
				} else if !apierrors.IsInvalid(err) {
					t.Errorf("%s: %v", name, err)
				}
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err == nil {
				addresses[got.Spec.ClusterIP]++
				ports[got.Spec.Ports[0].NodePort]++
			}
		})
	}
	for i := range each {
		for server := range servers {
			create(server, fmt.Sprintf("any-%d-%d", server, i), "", 0)
		}
	}
	group.Wait()
	free := "10.99.0.1"
	for i := 1; addresses[free] > 0 || i == 1; i++ { // the first address is the server's own
		free = fmt.Sprintf("10.99.0.%d", i+1)
	}
	port := int32(31000)
	for ports[port] > 0 {
		port++
	}
	for i := range each {
		for server := range servers {
			create(server, fmt.Sprintf("that-%d-%d", server, i), free, port)
		}
	}
	group.Wait()
	require.Equal(t, 1, won, "of those that want one address and port")
	require.Len(t, addresses, 2*each+1)
	require.Len(t, ports, 2*each+1)
}
