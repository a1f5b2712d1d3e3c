package job

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIntervals(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
		total int
	}{
		{"", 10, "", 0}, {"3", 10, "3", 1}, {"0,1", 10, "0,1", 2}, {"0-2,5", 10, "0-2,5", 4},
		{"0-9", 5, "0-4", 5}, {"0,7-9", 5, "0", 1}, {"x,2-y,4", 10, "4", 1},
	} {
		s := parseIntervals(c.text, c.limit)
		require.Equal(t, c.want, s.String(), "%q", c.text)
		require.Equal(t, c.total, s.total(), "%q", c.text)
	}
}

// TestIntervals_AreASet compares with a map, through the written form.
func TestIntervals_AreASet(t *testing.T) {
	const n = 60
	model := map[int]bool{}
	s := intervals{}
	for range 500 {
		i := rand.IntN(n)
		if len(model) == n {
			model, s = map[int]bool{}, intervals{}
		}
		model[i] = true
		s = parseIntervals(s.with(i).String(), n)
		require.Equal(t, len(model), s.total())
		for j := range n {
			require.Equal(t, model[j], s.has(j), "%d in %s", j, s)
		}
		require.Equal(t, len(model), s.common(intervals{{0, n - 1}}))
	}
}
