package ownprocess

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPaceOf(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		name string
		heap heap
		rate float64
		want int
	}{
		{"small and idle: half", heap{live: 8 * mib, walked: 4 * mib}, 1 * mib, 50},
		{"small and busy: all the headroom", heap{live: 16 * mib, walked: 4 * mib}, 100 * mib, 300},
		{"very small and busy: at most four times the live data", heap{live: 1 * mib, walked: 4 * mib}, 100 * mib, 400},
		{"large and busy: no more than the headroom", heap{live: 64 * mib, walked: 4 * mib}, 100 * mib, 75},
		{"large and idle: no more than the headroom", heap{live: 256 * mib, walked: 4 * mib}, 1 * mib, 25},
		{"very large: at least a quarter of the live data", heap{live: 1024 * mib, walked: 4 * mib}, 100 * mib, 25},
		{"caches with many pointers, busy: their size", heap{live: 400 * mib, walked: 300 * mib},
			100 * mib, 75},
		{"the same, idle: no more than the headroom", heap{live: 400 * mib, walked: 300 * mib}, 1 * mib, 25},
		{"no data", heap{}, 0, 50},
	} {
		assert.Equal(t, c.want, paceOf(c.heap, c.rate), c.name)
	}
}
