package proxy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPassage_AssignsDistinctStandIns(t *testing.T) {
	t.Parallel()
	newPassage := func(standIns string, services ...string) *passage {
		p := &passage{}
		if standIns != "" {
			p.standIns = netip.MustParsePrefix(standIns)
		}
		for _, s := range services {
			p.services = append(p.services, netip.MustParsePrefix(s))
		}
		return p
	}
	const v4, v6 = "242.0.0.0/7", "fd63:6f78:7377:2::/63"
	for _, c := range []struct {
		name              string
		passage           *passage
		clusterIP         string
		external, balance string // "" for none
	}{
		{"IPv4", newPassage(v4, "10.96.0.0/16"), "10.96.1.2", "242.96.1.2", "243.96.1.2"},
		{"IPv6", newPassage(v6, "fd96::/108"), "fd96::1:2", "fd63:6f78:7377:2::1:2", "fd63:6f78:7377:3::1:2"},
		{"a half that ends within a byte", newPassage("240.0.0.0/9", "10.96.0.0/16"), "10.96.1.2", "240.32.1.2", "240.96.1.2"},
		{"no machine", newPassage("", "10.96.0.0/16"), "10.96.1.2", "", ""},
		{"outside of the ranges", newPassage(v4, "10.96.0.0/16"), "10.97.0.1", "", ""},
		{"no range is known", newPassage(v4), "10.96.1.2", "", ""},
		{"the largest range", newPassage(v4, "10.0.0.0/8"), "10.1.2.3", "242.1.2.3", "243.1.2.3"},
		{"a range that is too large", newPassage(v4, "10.0.0.0/7"), "10.1.2.3", "", ""},
		{"the first of two ranges that end alike", newPassage(v4, "10.96.0.0/16", "11.96.0.0/16"), "10.96.0.1", "242.96.0.1",
			"243.96.0.1"},
		{"the second", newPassage(v4, "10.96.0.0/16", "11.96.0.0/16"), "11.96.0.1", "", ""},
		{"a part of the second", newPassage(v4, "10.96.0.0/16", "11.96.7.0/24"), "11.96.7.1", "", ""},
		{"two ranges that do not", newPassage(v4, "10.96.0.0/16", "11.97.0.0/16"), "11.97.0.1", "242.97.0.1", "243.97.0.1"},
		{"one behind a range that is too large", newPassage(v4, "10.0.0.0/7", "12.1.0.0/16"), "12.1.0.1", "", ""},
	} {
		for balancer, want := range map[bool]string{false: c.external, true: c.balance} {
			got := c.passage.standIn(netip.MustParseAddr(c.clusterIP), balancer)
			if want == "" {
				require.False(t, got.IsValid(), "%s: %s", c.name, got)
				continue
			}
			require.Equal(t, want, got.String(), c.name)
		}
	}
}
