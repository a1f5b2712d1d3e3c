package openapi

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// client-go's schema lacks types that are never applied. Its defaults of strings are Go's own.
func TestTopology_OfMetadataMatchesClientGo(t *testing.T) {
	t.Parallel()
	merge, err := mergeSchema()
	require.NoError(t, err)
	var compared []string
	for name, ours := range metaTopology {
		def, ok := merge.FindNamedType(name)
		if !ok {
			continue
		}
		compared = append(compared, name)
		theirs := topology{def.Atom}
		var a, b spec.Schema
		ours.markType(&a)
		theirs.markType(&b)
		require.Equal(t, b.Extensions, a.Extensions, name)
		for _, field := range def.Map.Fields {
			var a, b spec.Schema
			ours.markField(&a, field.Name)
			theirs.markField(&b, field.Name)
			require.Equal(t, b.Extensions, a.Extensions, "%s.%s", name, field.Name)
		}
	}
	require.ElementsMatch(t, []string{"io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
		"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
		"io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference"}, compared)
}
