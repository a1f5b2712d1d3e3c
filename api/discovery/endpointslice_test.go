package discovery_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestEndpointSlice_DropsOldTopology(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "EndpointSlice")
	old := kindtest.Decode(t, r, "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], deprecatedTopology: "+
		"{kubernetes.io/hostname: node-1}}]").(*discoveryv1.EndpointSlice)
	same, other := old.DeepCopy(), old.DeepCopy()
	r.PrepareUpdate(same, old)
	require.Equal(t, old.Endpoints, same.Endpoints)
	other.Endpoints[0].Addresses = []string{"10.0.0.2"}
	r.PrepareUpdate(other, old)
	require.Nil(t, other.Endpoints[0].DeprecatedTopology)
	require.Equal(t, "node-1", *other.Endpoints[0].NodeName)
	r.PrepareCreate(old)
	require.Nil(t, old.Endpoints[0].DeprecatedTopology)

	kindtest.Create(t, "EndpointSlice", "metadata: {name: s}\naddressType: IPv4\nendpoints: [{addresses: "+
		"[10.0.0.1]}]\nports: [{name: http, port: 80}]\n", []kindtest.Case{
		{"hints", []string{"[10.0.0.1]}", "[10.0.0.1], hints: {forZones: [{name: a}, {name: a}, {name: a b}]}}"},
			[]string{"Duplicate endpoints[0].hints.forZones[1].name", "Invalid endpoints[0].hints.forZones[2].name"}},
		{"type", []string{"IPv4", "IP"}, []string{"NotSupported addressType"}},
		{"no address", []string{"[10.0.0.1]}", "[]}"}, []string{"Required endpoints[0].addresses"}},
		{"loopback", []string{"10.0.0.1", "127.0.0.1"}, []string{"Invalid endpoints[0].addresses[0]"}},
		{"port twice", []string{"{name: http, port: 80}", "{name: http, port: 80}, {name: http, port: 81}"},
			[]string{"Duplicate ports[1].name"}},
	})
	s := kindtest.Decode(t, r, "metadata: {name: s}\naddressType: FQDN\nports: [{name: http}]").(*discoveryv1.EndpointSlice)
	require.Equal(t, []string{"addressType: FQDN endpoints are deprecated"}, r.Warnings(s, nil))
	require.Equal(t, "http", r.Cells(s)[2])
}

func TestEndpointSlice_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "EndpointSlice", "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{port: 80}]",
		[]kindtest.Case{
			{"type", []string{"IPv4", "IPv5"}, []string{"NotSupported addressType"}},
			{"family", []string{"10.0.0.1", "'fd00::1'"}, []string{"Invalid endpoints[0].addresses[0]"}},
			{"no address", []string{"[10.0.0.1]", "[]"}, []string{"Required endpoints[0].addresses"}},
		})
}
