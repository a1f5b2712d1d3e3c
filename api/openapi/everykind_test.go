package openapi_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api"
	apidocs "github.com/coxswain-dev/coxswain/api/openapi"
)

// everyKind registers all types of client-go's scheme that have a list.
func everyKind(t testing.TB) *api.Snapshot {
	r := api.NewRegistry()
	for gvk := range scheme.Scheme.AllKnownTypes() {
		list := gvk.GroupVersion().WithKind(gvk.Kind + "List")
		if gvk.Version == runtime.APIVersionInternal || !scheme.Scheme.Recognizes(list) {
			continue
		}
		fresh := func(gvk schema.GroupVersionKind) runtime.Object {
			obj, err := scheme.Scheme.New(gvk)
			require.NoError(t, err)
			return obj
		}
		if _, ok := fresh(gvk).(api.Object); !ok {
			continue
		}
		require.NoError(t, r.Add(&api.Resource{
			Names: api.Names{
				Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Plural: strings.ToLower(gvk.Kind) +
					"s", Namespaced: true,
			},
			Storage: api.Storage{
				New:     func() api.Object { return fresh(gvk).(api.Object) },
				NewList: func() runtime.Object { return fresh(list) },
			},
			Strategy: api.Strategy{Status: &api.Status{}},
		}))
	}
	return r.Snapshot()
}

func TestDocuments_DescribeEveryKindOfKubernetes(t *testing.T) {
	t.Parallel()
	s := everyKind(t)
	require.Greater(t, len(s.Resources), 60)
	docs := apidocs.NewDocuments(version)
	data, err := docs.V2(s).JSON()
	require.NoError(t, err)
	requireRefsResolve(t, "v2", data)
	for _, path := range apidocs.V3Paths(s) {
		data, err := docs.V3(s, path).JSON()
		require.NoError(t, err)
		requireRefsResolve(t, path, data)
		_, err = docs.V3(s, path).Protobuf()
		require.NoError(t, err, path)
	}
	for name, definition := range parse[spec.Swagger](t, docs.V2(s)).Definitions {
		for field, property := range definition.Properties {
			require.True(t, len(property.Type) > 0 || property.Ref.String() != "", "%s.%s has no type", name, field)
		}
	}
}
