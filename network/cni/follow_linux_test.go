package cni

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestFollow_RestartsWhenTheNodeChanges(t *testing.T) {
	t.Parallel()
	node := func(subnet, address string) Node {
		return Node{Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)}, Address: netip.MustParseAddr(address)}
	}
	first, second := node("10.1.0.0/24", "192.0.2.1"), node("10.2.0.0/24", "192.0.2.1")
	changes, runs := make(chan Node), make(chan Node)
	failed := errors.New("it has failed")
	ended := make(chan error, 1)
	go func() {
		ended <- follow(t.Context(), changes, func(ctx context.Context, n Node) error {
			runs <- n
			if n.equal(second) {
				return failed
			}
			<-ctx.Done()
			return nil
		})
	}()
	changes <- first
	require.Equal(t, first, <-runs)
	changes <- first // a report of the kubelet changes nothing here
	changes <- second
	require.Equal(t, second, <-runs)
	require.ErrorIs(t, <-ended, failed)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, follow(ctx, changes, nil), "a Node without subnets")
}

func TestNodeOf_TakesTheFirstInternalIPAndAllSubnets(t *testing.T) {
	t.Parallel()
	n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.7/24", "fd00::/64", "nonsense"}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "a"},
		{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}, {Type: corev1.NodeInternalIP, Address: "no address"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.2"}}
	require.Equal(t, Node{Address: netip.MustParseAddr("192.0.2.1"), Subnets: []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")}}, nodeOf(n))
}
