package validate

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/diff"
)

func TestDiff_OfShortValuesMatchesKubernetes(t *testing.T) {
	t.Parallel()
	old, is := map[string]string{"a": "1", "b": "2"}, map[string]string{"a": "1", "b": "3"}
	require.Equal(t, diff.Diff(old, is), Diff(old, is))
	require.Contains(t, Diff(old, is), "- \"b\": \"2\"\n+ \"b\": \"3\"\n")
}

// A line-by-line comparison of these values takes minutes.
func TestDiff_OfLongValuesShowsTheFirstDifferentLines(t *testing.T) {
	t.Parallel()
	var old, is []string
	for i := range 50_000 {
		old = append(old, strconv.Itoa(i/100))
		is = append(is, strconv.Itoa(i/100), "x")
	}
	require.Equal(t, strings.Repeat("- \"0\",\n", 10)+"-...\n"+strings.Repeat("+ \"x\",\n+ \"0\",\n", 5)+"+...\n",
		Diff(old, is))
	require.Equal(t, "- \"499\"\n-]\n+ \"499\",\n+ \"y\"\n+]\n", Diff(old, append(slices.Clone(old), "y")))
}
