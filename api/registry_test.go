package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
)

func TestRegistry_ReplacesInOneStep(t *testing.T) {
	t.Parallel()
	kind := func(plural, kind string) *api.Resource {
		return &api.Resource{
			Names: api.Names{Group: "example.com", Version: "v1", Plural: plural, Kind: kind},
			Storage: api.Storage{
				New:     func() api.Object { return &corev1.Pod{} },
				NewList: func() runtime.Object { return &corev1.PodList{} },
			},
		}
	}
	a, b := kind("as", "A"), kind("bs", "B")
	r := api.NewRegistry(a, b)
	before := r.Snapshot()
	for name, c := range map[string]struct {
		add  []*api.Resource
		says string
	}{
		"the same plural": {[]*api.Resource{kind("cs", "C"), kind("bs", "D")}, "is registered twice"},
		"the same kind":   {[]*api.Resource{kind("ds", "B")}, "is registered twice"},
		"twice in one":    {[]*api.Resource{kind("cs", "C"), kind("cs", "C")}, "is registered twice"},
		"incomplete":      {[]*api.Resource{{Names: api.Names{Kind: "C"}}}, "is incomplete"},
	} {
		require.ErrorContains(t, r.Replace([]*api.Resource{a}, c.add), c.says, name)
		require.Same(t, before, r.Snapshot(), "nothing has changed")
	}
	next := kind("as", "A")
	require.NoError(t, r.Replace([]*api.Resource{a, kind("unknown", "Unknown")}, []*api.Resource{next}))
	after := r.Snapshot()
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "as"}
	require.Same(t, next, after.Resource(gvr))
	require.Same(t, a, before.Resource(gvr), "a snapshot stays as it is")
	require.Greater(t, after.Generation, before.Generation)
	require.Equal(t, []*api.Resource{b, next}, after.Resources)
	require.Equal(t, "AList", next.ListGVK().Kind)
}
