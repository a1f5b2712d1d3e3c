package encoding

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEncoding_StopsWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, wanted(ctx, 31))
	cancel()
	require.NoError(t, wanted(ctx, 0), "one document is answered: it may be of a write that has happened")
	require.ErrorIs(t, wanted(ctx, 31), context.Canceled)
}
