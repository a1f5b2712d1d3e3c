package serviceranges_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/serviceranges"
)

func TestCheck_RejectsRangesThatCannotWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		ranges    []string
		advertise string
		err       string
	}{
		{"one of IPv4", []string{"10.96.0.0/16"}, "", ""},
		{"one of each family", []string{"10.96.0.0/16", "fd00::/112"}, "192.0.2.1", ""},
		{"IPv6 at an IPv6 address", []string{"fd00::/112"}, "fd01::1", ""},
		{"IPv6 with the address left open", []string{"fd00::/112"}, "", ""},
		{"none", nil, "", "at least one valid cidr"},
		{"three", []string{"10.0.0.0/16", "fd00::/112", "10.1.0.0/16"}, "", "more than two entries"},
		{"two of a family", []string{"10.0.0.0/16", "10.1.0.0/16"}, "", "different IP family"},
		{"too large in IPv6", []string{"fd00::/48"}, "", "too large; for 128-bit addresses, the mask must be >= 64"},
		{"everything", []string{"0.0.0.0/0"}, "", "too large"},
		{"too small", []string{"10.0.0.0/31"}, "", "too small"},
		{"IPv6 advertised in IPv4", []string{"fd00::/112"}, "192.0.2.1",
			`service IP family "IPv6" must match public address family "IPv4"`},
		{"IPv4 advertised in IPv6", []string{"10.0.0.0/16", "fd00::/112"}, "fd01::1",
			`service IP family "IPv4" must match public address family "IPv6"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var ranges []netip.Prefix
			for _, r := range c.ranges {
				ranges = append(ranges, netip.MustParsePrefix(r))
			}
			advertise, _ := netip.ParseAddr(c.advertise)
			if err := serviceranges.Check(ranges, advertise); c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}
