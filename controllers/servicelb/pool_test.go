package servicelb

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPool(t *testing.T) {
	pool, err := ParsePool([]string{"192.0.2.254/31", " 198.51.100.7-198.51.100.8", "2001:db8::/127"})
	require.NoError(t, err)
	used := map[netip.Addr]bool{}
	take := func(v6 bool) string {
		a, ok := pool.First(v6, used)
		if !ok {
			return ""
		}
		require.True(t, pool.Contains(a))
		used[a] = true
		return a.String()
	}
	for _, want := range []string{"192.0.2.254", "192.0.2.255", "198.51.100.7", "198.51.100.8", ""} {
		require.Equal(t, want, take(false))
	}
	for _, want := range []string{"2001:db8::", "2001:db8::1", ""} {
		require.Equal(t, want, take(true))
	}
	for _, outside := range []string{"192.0.2.253", "198.51.100.9", "2001:db8::2", "::c000:2fe"} {
		require.False(t, pool.Contains(netip.MustParseAddr(outside)), outside)
	}
	whole, err := ParsePool([]string{"255.255.255.254-255.255.255.255"})
	require.NoError(t, err)
	used = map[netip.Addr]bool{netip.MustParseAddr("255.255.255.254"): true,
		netip.MustParseAddr("255.255.255.255"): true}
	_, ok := whole.First(false, used)
	require.False(t, ok, "no address is left")

	for _, bad := range [][]string{
		{"192.0.2.0"}, {"192.0.2.9-192.0.2.1"}, {"192.0.2.1-2001:db8::1"}, {"pool"}, {"192.0.2.0/33"},
		{"192.0.2.0/24", "192.0.2.9-192.0.3.1"},
	} {
		_, err := ParsePool(bad)
		require.Error(t, err, "%v", bad)
	}
}
