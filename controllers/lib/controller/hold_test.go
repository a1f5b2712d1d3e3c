package controller

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHold_StopsReconciliationsUntilItEnds(t *testing.T) {
	t.Parallel()
	h := &Hold{}
	require.True(t, h.enter(t.Context()))
	begun := make(chan struct{})
	go func() {
		h.Begin(t.Context())
		close(begun)
	}()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	h.Begin(ended) // does not wait for longer than its context
	h.End()
	h.leave()
	<-begun
	entered := make(chan bool)
	go func() { entered <- h.enter(t.Context()) }()
	require.False(t, h.enter(ended))
	remove := h.AddCaches(func(revision int64) string { return "pods" })
	require.Equal(t, []string{"pods"}, h.Behind(7))
	remove()
	require.Empty(t, h.Behind(7))
	select {
	case <-entered:
		require.Fail(t, "it runs while held")
	default:
	}
	h.End()
	require.True(t, <-entered)
	h.leave()
}

func TestHold_NilStopsNothing(t *testing.T) {
	t.Parallel()
	var h *Hold
	h.Begin(t.Context())
	require.True(t, h.enter(t.Context()))
	h.leave()
	h.AddCaches(nil)()
	require.Empty(t, h.Behind(1))
	h.End()
}
