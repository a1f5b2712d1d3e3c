//go:build e2e

package conformance

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// AggregatedDiscovery should support aggregated discovery interface for CRDs
func TestDiscovery_AggregatedClientFindsKinds(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Noxu", version("v1", plainSchema)))
	client, ok := c.core.Discovery().(discovery.AggregatedDiscoveryInterface)
	require.True(t, ok)
	gv := schema.GroupVersion{Group: crd.Spec.Group, Version: "v1"}
	require.Eventually(t, func() bool {
		groups, resources, failed, err := client.GroupsAndMaybeResources()
		require.NoError(t, err)
		require.Empty(t, failed)
		require.NotNil(t, resources, "the answer is aggregated")
		found := false
		for _, g := range groups.Groups {
			found = found || g.Name == gv.Group
		}
		return found && resources[gv] != nil && resources[gv].APIResources[0].Name == crd.Spec.Names.Plural
	}, patience, tick)
}

// AggregatedDiscovery should support raw aggregated discovery request for CRDs
func TestDiscovery_AcceptHeaderFindsKinds(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Noxu", version("v1", plainSchema)))
	require.Eventually(t, func() bool {
		var groups apidiscoveryv2.APIGroupDiscoveryList
		require.NoError(t, json.Unmarshal(
			c.get("/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"), &groups))
		require.Equal(t, "APIGroupDiscoveryList", groups.Kind)
		for _, g := range groups.Items {
			if g.Name == crd.Spec.Group {
				return g.Versions[0].Version == "v1" && g.Versions[0].Resources[0].Resource == crd.Spec.Names.Plural &&
					g.Versions[0].Resources[0].ResponseKind.Kind == crd.Spec.Names.Kind
			}
		}
		return false
	}, patience, tick)
}
