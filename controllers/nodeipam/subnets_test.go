package nodeipam

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

func TestSubnets(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		cluster string
		bits    int
		used    []string
		want    []string // the results one after another, each used from then on; "" if none is left
	}{
		{"10.0.0.0/22", 24, nil, []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24", ""}},
		{"10.0.0.0/22", 24, []string{"10.0.0.0/23"}, []string{"10.0.2.0/24", "10.0.3.0/24", ""}},
		{"10.0.0.0/22", 24, []string{"10.0.1.128/25", "192.168.0.0/16"},
			[]string{"10.0.0.0/24", "10.0.2.0/24", "10.0.3.0/24", ""}},
		{"10.0.0.0/22", 24, []string{"10.0.0.0/8"}, []string{""}},
		{"10.0.0.0/24", 24, nil, []string{"10.0.0.0/24", ""}},
		{"10.0.0.0/30", 32, nil, []string{"10.0.0.0/32", "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", ""}},
		{"fd00:10::/62", 64, []string{"fd00:10:0:1::/64"},
			[]string{"fd00:10::/64", "fd00:10:0:2::/64", "fd00:10:0:3::/64", ""}},
	} {
		s := &subnets{cluster: prefix(c.cluster), bits: c.bits}
		var used []netip.Prefix
		for _, u := range c.used {
			used = append(used, prefix(u))
		}
		for _, want := range c.want {
			got, _, ok := s.next(used)
			require.Equal(t, want != "", ok, "%+v", c)
			if ok {
				require.Equal(t, want, got.String(), "%+v", c)
				used = append(used, got)
			}
		}
	}

	s := &subnets{cluster: prefix("10.0.0.0/22"), bits: 24}
	first, _, _ := s.next(nil)
	second, _, _ := s.next(nil)
	require.NotEqual(t, first, second, "a subnet that was just freed is not the next one")
}

func TestParse_RejectsInvalidFlags(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/56")
	settings := func(edit func(*controller.NodeIPAMSettings), cidrs ...netip.Prefix) controller.NodeIPAMSettings {
		s := controller.Settings{}.WithDefaults().NodeIPAM
		s.ClusterCIDRs = cidrs
		if edit != nil {
			edit(&s)
		}
		return s
	}
	for _, s := range []controller.NodeIPAMSettings{
		settings(nil),
		settings(nil, v4, v4),
		settings(func(s *controller.NodeIPAMSettings) { s.MaskSize = 26 }, v4, v6),
		settings(func(s *controller.NodeIPAMSettings) { s.MaskSizeIPv4 = 12 }, v4),
		settings(func(s *controller.NodeIPAMSettings) { s.MaskSize = 33 }, v4),
		settings(func(s *controller.NodeIPAMSettings) { s.MaskSizeIPv6 = 73 }, v6),
	} {
		_, err := parse(s)
		require.Error(t, err, "%+v", s)
	}
	sets, err := parse(settings(nil, v4, v6))
	require.NoError(t, err)
	require.Equal(t, []int{24, 64}, []int{sets[0].bits, sets[1].bits})
	sets, err = parse(settings(func(s *controller.NodeIPAMSettings) { s.MaskSize = 26 }, v4))
	require.NoError(t, err)
	require.Equal(t, 26, sets[0].bits)
}
