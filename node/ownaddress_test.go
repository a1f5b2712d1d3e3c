package node

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestOwnAddress_FollowsFromTheSubnet(t *testing.T) {
	t.Parallel()
	for subnet, want := range map[string]string{
		"10.244.0.0/24": "127.244.0.1", "10.244.4.0/22": "127.244.4.1", "192.168.7.64/26": "127.168.7.65",
	} {
		own, ok := ownAddress(netip.MustParsePrefix(subnet))
		require.True(t, ok)
		require.Equal(t, want, own.String(), subnet)
	}
	for _, subnet := range []netip.Prefix{{}, netip.MustParsePrefix("fd00::/64")} {
		_, ok := ownAddress(subnet)
		require.False(t, ok, subnet)
	}
}

func TestAddressesOf_AreTheAgentsAndTheHosts(t *testing.T) {
	t.Parallel()
	internal := func(addresses ...string) (all []corev1.NodeAddress) {
		for _, a := range addresses {
			all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n"})
	}
	subnet := netip.MustParsePrefix("10.244.4.0/22")
	for _, c := range []struct {
		address string
		own     bool
		subnet  netip.Prefix
		want    []corev1.NodeAddress
	}{
		{"192.0.2.1", false, subnet, internal("192.0.2.1")},
		{"127.0.0.1", false, subnet, internal("127.0.0.1", "10.244.4.1")},
		{"127.0.0.1", true, subnet, internal("127.244.4.1", "10.244.4.1")},
		{"127.0.0.1", true, netip.Prefix{}, internal("127.0.0.1")},
	} {
		a := &agent{Options: Options{Address: c.address, OwnAddresses: c.own}}
		require.Equal(t, c.want, a.addressesOf("n", c.subnet), c)
	}
}

func TestNamedNode_FollowsFromTheAddressOfARequest(t *testing.T) {
	t.Parallel()
	a := &agent{Options: Options{OwnAddresses: true}}
	a.setSubnet(&hostedNode{name: "a"}, "10.244.0.0/24")
	a.setSubnet(&hostedNode{name: "b"}, "10.244.1.0/24")
	request := func(target, url string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey,
			net.Addr(&net.TCPAddr{IP: net.ParseIP(target), Port: 10250})))
	}
	require.Equal(t, "a", a.namedNode(request("127.244.0.1", "/metrics")))
	require.Equal(t, "b", a.namedNode(request("127.244.1.1", "/metrics")))
	require.Empty(t, a.namedNode(request("127.0.0.1", "/metrics")))
	require.Equal(t, "a", a.namedNode(request("127.244.1.1", "/metrics?node=a")), "a name precedes the address")
	named := request("127.244.1.1", "/metrics")
	named.Header.Set(NodeHeader, "a")
	require.Equal(t, "a", a.namedNode(named))
	require.Empty(t, a.namedNode(httptest.NewRequest(http.MethodGet, "/metrics", nil)))
}
