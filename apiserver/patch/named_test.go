package patch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamed_DirectivesAreLeftToTheLongWay(t *testing.T) {
	t.Parallel()
	for patch, want := range map[string]Named{
		`{"metadata":{"labels":{"a":"b"},"name":null}}`: {members: []string{"metadata"},
			metadata: []string{"labels", "name"}},
		`{"metadata":{"finalizers":[],"$setElementOrder/finalizers":[]}}`: {members: []string{"metadata"}},
		`{"metadata":null}`:                                              {members: []string{"metadata"}},
		` { "spec" : { } , "status" : null } `:                           {members: []string{"spec", "status"}},
		`{"$patch":"replace","spec":{}}`:                                 {},
		`{"secrets":[{"name":"a"}],"$setElementOrder/secrets":["name"]}`: {},
		`{}`: {},
	} {
		require.Equal(t, want, NamedBy([]byte(patch)), patch)
	}
}
