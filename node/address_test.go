package node

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

func TestAddresses_AreReusedAfterRelease(t *testing.T) {
	t.Parallel()
	var a addresses
	_, err := a.takeAddress("early")
	require.ErrorIs(t, err, errNoCIDR)
	a.setCIDR("10.244.0.0/29")
	seen := map[string]bool{}
	for _, pod := range []string{"1", "2", "3", "4", "5"} {
		ip, err := a.takeAddress(types.UID("uid-" + pod))
		require.NoError(t, err)
		require.False(t, seen[ip])
		seen[ip] = true
	}
	_, err = a.takeAddress("one too many")
	require.EqualError(t, err, "no address of 10.244.0.0/29 is free")
	a.releaseAddress("uid-3")
	ip, err := a.takeAddress("late")
	require.NoError(t, err)
	require.Equal(t, "10.244.0.4", ip)
}

func TestCIDRs_DoNotOverlapWithOtherNodes(t *testing.T) {
	t.Parallel()
	c := newCIDRs(1000)
	c.note("foreign", "10.244.1.0/24") // inside the first /22
	first, err := c.choose("node-0")
	require.NoError(t, err)
	require.Equal(t, "10.244.4.0/22", first)
	second, err := c.choose("node-1")
	require.NoError(t, err)
	require.Equal(t, "10.244.8.0/22", second)
	require.Equal(t, 24, newCIDRs(110).bits)
}

func TestCIDRs_SkipSubnetsThatTheServerRejects(t *testing.T) {
	t.Parallel()
	a := &agent{cidrs: newCIDRs(110)}
	refused := func(words string) error {
		return apierrors.NewForbidden(corev1.Resource("nodes"), "node-0", errors.New(words))
	}
	for _, c := range []struct {
		err  error
		next string
	}{
		{nil, "10.244.0.0/24"},
		{refused("is not allowed to modify taints"), "10.244.0.0/24"},
		{errors.New("spec.podCIDRs: no connection"), "10.244.0.0/24"},
		{refused("spec.podCIDRs: 10.244.0.0/24 overlaps with the range of another Node"), "10.244.1.0/24"},
		{refused("spec.podCIDRs: 10.244.1.0/24 overlaps with the range of another Node"), "10.244.2.0/24"},
	} {
		cidr, err := a.cidrs.choose("node-0")
		require.NoError(t, err)
		a.passOver(cidr, c.err)
		next, err := a.cidrs.choose("node-0")
		require.NoError(t, err)
		require.Equal(t, c.next, next)
	}
}

func TestCIDRs_AvoidNetworksOfTheMachine(t *testing.T) {
	t.Parallel()
	c := newCIDRs(110)
	address := func(cidr string) net.Addr {
		ip, network, err := net.ParseCIDR(cidr)
		require.NoError(t, err)
		return &net.IPNet{IP: ip, Mask: network.Mask}
	}
	c.avoid([]net.Addr{address("10.244.0.1/24"), address("10.0.0.7/8"), address("192.168.0.1/16"),
		address("fe80::1/64")})
	first, err := c.choose("node-0")
	require.NoError(t, err)
	require.Equal(t, "10.244.1.0/24", first, "another agent of this machine has the first")
	second, err := c.choose("node-1")
	require.NoError(t, err)
	require.Equal(t, "10.244.2.0/24", second)
}
