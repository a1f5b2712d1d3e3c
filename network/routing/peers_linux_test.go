package routing

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/network/router"
)

// node returns a Node that was created at a second of the epoch.
func node(name string, second int64, address string, cidrs ...string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(second, 0))},
		Spec:       corev1.NodeSpec{PodCIDRs: cidrs},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}},
	}
}

func TestPeersOf_GivesASubnetToTheOldestNode(t *testing.T) {
	t.Parallel()
	services := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	peer := func(address string, subnets ...string) router.Peer {
		p := router.Peer{Address: netip.MustParseAddr(address)}
		for _, s := range subnets {
			p.Subnets = append(p.Subnets, netip.MustParsePrefix(s))
		}
		return p
	}
	own := node("own", 9, "192.0.2.1", "10.244.0.0/24")
	for _, c := range []struct {
		name     string
		nodes    []*corev1.Node
		want     []router.Peer
		problems []string
	}{
		{"peers, oldest first", []*corev1.Node{own, node("b", 2, "192.0.2.3", "10.244.2.0/24"),
			node("a", 1, "192.0.2.2", "10.244.1.0/24", "fd00::/64")},
			[]router.Peer{peer("192.0.2.2", "10.244.1.0/24", "fd00::/64"), peer("192.0.2.3", "10.244.2.0/24")}, nil},
		{"our own subnet even if the Node is younger", []*corev1.Node{own, node("thief", 1, "192.0.2.2", "10.244.0.0/16")}, nil,
			[]string{"pod CIDR 10.244.0.0/16 of node thief overlaps with 10.244.0.0/24 of node own"}},
		{"the older of two Nodes", []*corev1.Node{node("old", 1, "192.0.2.2", "10.244.1.0/24"),
			node("thief", 2, "192.0.2.3", "10.244.1.128/25", "10.244.3.0/24")},
			[]router.Peer{peer("192.0.2.2", "10.244.1.0/24"), peer("192.0.2.3", "10.244.3.0/24")},
			[]string{"pod CIDR 10.244.1.128/25 of node thief overlaps with 10.244.1.0/24 of node old"}},
		{"no cluster IPs", []*corev1.Node{node("thief", 1, "192.0.2.2", "10.96.0.0/24")}, nil,
			[]string{"pod CIDR 10.96.0.0/24 of node thief overlaps with 10.96.0.0/16 of the Services of the cluster"}},
		{"no default route or invalid subnet",
			[]*corev1.Node{node("a", 1, "192.0.2.2", "0.0.0.0/0", "10.1/16")}, nil, nil},
		{"no Node without a usable address", []*corev1.Node{node("a", 1, "fd00::1", "10.244.1.0/24"),
			node("b", 1, "192.0.2.1", "10.244.2.0/24"), node("c", 1, "127.0.0.1", "10.244.3.0/24"),
			node("d", 1, "", "10.244.4.0/24"), node("e", 1, "10.244.5.1", "10.244.5.0/24")}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, problems := peersOf(c.nodes, []string{"own"}, netip.MustParseAddr("192.0.2.1"), services)
			require.Equal(t, c.want, got)
			require.Equal(t, c.problems, problems)
		})
	}
}
