package authn

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCache_DropsExpiredAndUnusedEntries(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := newCache[int](10)
	key := func(i int) digest { return sha256.Sum256(fmt.Append(nil, i)) }
	for i := range 1000 {
		c.put(key(i), i, now.Add(time.Hour))
		_, ok := c.get(key(0), now)
		require.True(t, ok, "it is asked for all the time")
	}
	require.LessOrEqual(t, len(c.young)+len(c.old), 20)
	_, ok := c.get(key(500), now)
	require.False(t, ok)
	value, ok := c.get(key(999), now)
	require.True(t, ok)
	require.Equal(t, 999, value)
	_, ok = c.get(key(999), now.Add(time.Hour))
	require.False(t, ok)
}
