package serviceranges

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBalancers_HaveAddressesOfNoOtherKind(t *testing.T) {
	t.Parallel()
	for services, want := range map[string]string{
		"10.96.0.0/16": "10.111.0.0/20", "192.168.0.0/16": "10.111.0.0/20",
		"10.96.0.0/12": "10.95.0.0/20", "10.0.0.0/8": "198.18.0.0/20",
	} {
		require.Equal(t, want, Balancers([]netip.Prefix{netip.MustParsePrefix(services)}).String(), services)
	}
}

func TestPool_LeavesOutTheEndsOfTheNetwork(t *testing.T) {
	t.Parallel()
	four, six := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")
	require.Equal(t, []string{"127.96.0.1-127.96.15.254"}, Pool(SimulatedBalancers, []netip.Prefix{four}))
	require.Equal(t, []string{"10.111.0.1-10.111.15.254", balancers6},
		Pool(Balancers([]netip.Prefix{four}), []netip.Prefix{four, six}))
}
