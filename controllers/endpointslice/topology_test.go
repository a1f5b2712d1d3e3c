package endpointslice

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/endpointslices"
)

// slice returns a slice with an endpoint for each letter, in the zone of this name. Capitals are not ready.
func slice(zones string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for i, z := range zones {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprint("10.0.0.", i)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(z >= 'a')}}
		if z != '-' {
			e.Zone = new(string(z | 0x20))
		} else {
			e.Conditions.Ready = new(true)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// hinted gives the endpoints of a slice hints, one for each letter.
func hinted(s *discoveryv1.EndpointSlice, zones string) *discoveryv1.EndpointSlice {
	for i, z := range zones {
		s.Endpoints[i].Hints = forZone(string(z))
	}
	return s
}

func hintsOfSlice(s *discoveryv1.EndpointSlice) (zones string) {
	for _, e := range s.Endpoints {
		if e.Hints == nil {
			zones += "-"
		} else {
			zones += e.Hints.ForZones[0].Name
		}
	}
	return zones
}

func TestZones_GetTheirShareOfTheEndpoints(t *testing.T) {
	t.Parallel()
	halves := map[string]float64{"a": 0.5, "b": 0.5}
	thirds := map[string]float64{"a": 1.0 / 3, "b": 1.0 / 3, "c": 1.0 / 3}
	cases := map[string]struct {
		shares    map[string]float64
		endpoints string
		want      string // hints, or the reason why there are none, which begins with a capital
	}{
		"each its own":  {halves, "aabb", "aabb"},
		"one too many":  {halves, "aaab", "baab"},
		"all elsewhere": {halves, "cccc", "cccc"}, // a zone without Nodes keeps its endpoints
		"not by half": {halves, "aab", "Unable to allocate minimum required endpoints to each zone " +
			"without exceeding overload threshold (3 endpoints, 2 zones)"},
		"by CPU":       {map[string]float64{"a": 0.75, "b": 0.25}, "aabb", "aaab"},
		"unready ones": {halves, "aAabBb", "a-ab-b"},
		"too few":      {halves, "a", "Insufficient number of endpoints (1 endpoints, 2 zones)"},
		"none ready":   {halves, "AB", "Insufficient number of endpoints (0 endpoints, 2 zones)"},
		"too few for each": {thirds, "abca", "Unable to allocate minimum required endpoints to each zone " +
			"without exceeding overload threshold (4 endpoints, 3 zones)"},
		"enough for each": {thirds, "abcabc", "abcabc"},
		"no Nodes": {nil, "aabb",
			"Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"},
		"an endpoint without zone": {halves, "aab-", "One or more endpoints do not have a zone specified"},
		"two zones take from one":  {thirds, "aaaaaabbb", "cccaaabbb"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := slice(c.endpoints)
			z := &zones{changes: &endpointslices.Changes{Create: []*discoveryv1.EndpointSlice{s}},
				addressType: discoveryv1.AddressTypeIPv4}
			if reason := z.assign(c.shares); reason != "" {
				require.Equal(t, c.want, reason)
				return
			}
			require.Equal(t, c.want, hintsOfSlice(s))
		})
	}
}

func TestZones_KeepHintsOfUnchangedSlices(t *testing.T) {
	t.Parallel()
	halves := map[string]float64{"a": 0.5, "b": 0.5}
	unchanged, overfull, bare, changed := hinted(slice("aaab"), "baab"), hinted(slice("aaaaaaaa"), "aaaaaaaa"),
		slice("bb"), slice("bb")
	z := &zones{addressType: discoveryv1.AddressTypeIPv4, changes: &endpointslices.Changes{
		Update:    []*discoveryv1.EndpointSlice{changed},
		Unchanged: []*discoveryv1.EndpointSlice{unchanged, overfull, bare},
	}}
	require.Empty(t, z.assign(halves))
	require.Equal(t, "baab", hintsOfSlice(unchanged), "it fits")
	total := map[rune]int{}
	for _, s := range []*discoveryv1.EndpointSlice{unchanged, overfull, bare, changed} {
		for _, zone := range hintsOfSlice(s) {
			total[zone]++
		}
	}
	require.Equal(t, map[rune]int{'a': 8, 'b': 8}, total)
}
