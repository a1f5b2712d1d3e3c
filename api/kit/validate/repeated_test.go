package validate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRepeated_MatchesALinearSearch(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		list := make([]int, random.IntN(200))
		for i := range list {
			list[i] = random.IntN(150)
		}
		var s Seen
		for i, v := range list {
			require.Equal(t, slices.Contains(list[:i], v), Repeated(&s, list[:i], v))
		}
		has := Members(list, func(v *int) int { return *v })
		for v := range 160 {
			require.Equal(t, slices.Contains(list, v), has(v))
		}
	}
}
