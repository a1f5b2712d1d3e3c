package near_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/internal/near"
)

func Example() {
	kinds := []string{"deployments", "daemonsets", "pods", "services"}
	fmt.Println(near.List(near.Names("deploymnt", kinds)))
	// Output: deployments
}

func TestDistance_CountsEdits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b        string
		limit, want int
	}{
		{"", "", 3, 0},
		{"web", "web", 0, 0},
		{"web", "wbe", 3, 1},
		{"deploymnt", "deployments", 3, 2},
		{"kitten", "sitting", 3, 3},
		{"kitten", "sitting", 2, 3},
		{"a", "", 3, 1},
		{"", "abcd", 3, 4},
		{"ca", "abc", 3, 3}, // restricted: no edit between two exchanged bytes
		{"pods", "nodes", 3, 2},
		{"abcdefgh", "hgfedcba", 3, 4},
	} {
		require.Equal(t, c.want, near.Distance(c.a, c.b, c.limit), "%q %q", c.a, c.b)
		require.Equal(t, c.want, near.Distance(c.b, c.a, c.limit), "%q %q", c.b, c.a)
	}
}

// TestDistance_AgreesWithItsDefinition compares all short names of three letters with a recursive count.
func TestDistance_AgreesWithItsDefinition(t *testing.T) {
	t.Parallel()
	var count func(a, b string) int
	count = func(a, b string) int {
		if a == "" || b == "" {
			return len(a) + len(b)
		}
		substitution := 1
		if a[0] == b[0] {
			substitution = 0
		}
		least := min(count(a[1:], b)+1, count(a, b[1:])+1, count(a[1:], b[1:])+substitution)
		if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
			least = min(least, count(a[2:], b[2:])+1)
		}
		return least
	}
	words := []string{""}
	for i := 0; i < len(words) && len(words[i]) < 4; i++ {
		for _, letter := range "abc" {
			words = append(words, words[i]+string(letter))
		}
	}
	for i, a := range words {
		for _, b := range words[i%7*3:] {
			for limit := range 4 {
				require.Equal(t, min(count(a, b), limit+1), near.Distance(a, b, limit), "%q %q %d", a, b, limit)
			}
		}
	}
}

func TestNames_ReturnsTheClosestFirst(t *testing.T) {
	t.Parallel()
	pods := []string{"web-0", "web-1", "web-12", "db-0", "api-7d9c5b8f4d-x2x4z", "apiary"}
	for typed, want := range map[string][]string{
		"wbe-1":   {"web-1"},
		"Web-1":   {"web-1", "web-0", "web-12"},
		"db0":     {"db-0"},
		"api":     {"api-7d9c5b8f4d-x2x4z"}, // not apiary, which continues the word
		"cache":   nil,
		"":        nil,
		"w":       nil,
		"web-0-x": {"web-0"},
	} {
		require.Equal(t, want, near.Names(typed, pods), typed)
	}
	require.Equal(t, []string{"--nodes"}, near.Names("--node", []string{"--nodes", "--node-prefix-and-more"}))
	require.Equal(t, "a, b or c", near.List([]string{"a", "b", "c"}))
	require.Equal(t, "a or b", near.List([]string{"a", "b"}))
	require.Equal(t, "a", near.List([]string{"a"}))
	require.Empty(t, near.List(nil))
}

// TestNames_BoundsItsWork compares names that are longer, and more, than any that a person types. Without bounds the
// table of one pair would have 10^14 entries.
func TestNames_BoundsItsWork(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 10<<20)
	require.Empty(t, near.Names(long, []string{long, long + "b"}))
	require.Empty(t, near.Names("aaaa", []string{long}))
	require.Equal(t, 4, near.Distance(long, long+"b", 3))
	many := make([]string, 1<<20)
	many[len(many)-1] = "web-1"
	require.Empty(t, near.Names("wbe-1", many))
}

func FuzzDistance(f *testing.F) {
	f.Add("web-1", "wbe-1", uint8(3))
	f.Add("", "\xff", uint8(0))
	f.Fuzz(func(t *testing.T, a, b string, n uint8) {
		limit := int(n % 8)
		d := near.Distance(a, b, limit)
		if d < 0 || d > limit+1 || (d == 0) != (a == b) {
			t.Fatalf("%q %q: %d of %d", a, b, d, limit)
		}
		if back := near.Distance(b, a, limit); back != d {
			t.Fatalf("%q %q: %d, backwards %d", a, b, d, back)
		}
		near.Names(a, []string{b, a + b, b + a})
	})
}
