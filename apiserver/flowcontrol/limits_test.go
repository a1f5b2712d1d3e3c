package flowcontrol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInFlight_ReadsAndWritesDoNotStarveEachOther(t *testing.T) {
	t.Parallel()
	const read, write = true, false
	l := NewInFlight(2, 1)
	require.True(t, l.Take(read))
	require.True(t, l.Take(read))
	require.False(t, l.Take(read))
	require.True(t, l.Take(write))
	require.False(t, l.Take(write))
	l.Leave(read)
	require.False(t, l.Take(write))
	require.True(t, l.Take(read))

	none := NewInFlight(-1, 0)
	for range 100 {
		require.True(t, none.Take(read), "a negative limit is none")
	}
	none.Leave(read)
	require.False(t, none.Take(write))
}

func TestPerUser_LimitsEachUserSeparately(t *testing.T) {
	t.Parallel()
	l := PerUser{Max: 2}
	require.True(t, l.Take("jane"))
	require.True(t, l.Take("jane"))
	require.False(t, l.Take("jane"))
	require.True(t, l.Take("joe"))
	l.Leave("jane")
	require.True(t, l.Take("jane"))
	l.Leave("jane")
	l.Leave("jane")
	l.Leave("joe")
	require.Empty(t, l.byUser, "users without requests are forgotten")

	unlimited := PerUser{Max: -1}
	for range 100 {
		require.True(t, unlimited.Take("jane"))
	}
	unlimited.Leave("jane")
}
