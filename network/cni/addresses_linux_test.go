package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddresses_AreAllocatedInSubnetsOfAnySize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		subnet string
		room   int // -1: more than the test allocates
	}{
		{"10.1.0.0/30", 1}, {"10.1.0.248/29", 5}, {"10.0.0.0/8", -1}, {"255.255.255.248/29", 5},
		{"fd00::/126", 2}, {"fd00::/64", -1}, {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125", 6}, {"10.1.0.0/31", 0},
	} {
		t.Run(c.subnet, func(t *testing.T) {
			t.Parallel()
			subnet := netip.MustParsePrefix(c.subnet)
			a := addresses{folder(t.TempDir())}
			require.NoError(t, os.Mkdir(a.path("addresses"), 0o700))
			take := func(i int) (netip.Addr, error) {
				own, _, err := a.take(attachment{"n", fmt.Sprint("c", i), "eth0"}, []netip.Prefix{subnet})
				if err != nil {
					return netip.Addr{}, err
				}
				return own[0], nil
			}
			room := c.room
			if room < 0 {
				room = 20
			}
			for i := range room {
				address, err := take(i)
				require.NoError(t, err)
				require.True(t, subnet.Contains(address))
				require.Equal(t, after(subnet.Addr(), i+2), address)
			}
			if c.room < 0 {
				last := filepath.Base(a.lastFile(subnet))
				require.NoError(t, os.WriteFile(a.path(last), []byte(lastOf(subnet).String()), 0o600))
				address, err := take(room)
				require.NoError(t, err)
				require.Equal(t, after(subnet.Addr(), room+2), address, "it wraps around and skips allocated addresses")
				return
			}
			_, err := take(room)
			require.ErrorAs(t, err, &errNoAddress{})
			require.ErrorAs(t, a.free([]netip.Prefix{subnet}), &errNoAddress{})
			if room > 0 {
				again, err := take(0)
				require.NoError(t, err)
				require.Equal(t, after(subnet.Addr(), 2), again, "an attachment keeps its address")
			}
		})
	}
}

func after(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}
