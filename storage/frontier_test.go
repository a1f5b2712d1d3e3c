package storage

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestRevision_WaitsUntilMemoryHasReachedIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Store{ctx: t.Context(), query: revisionQuery{ask: func() (int64, error) { return 5, nil }}}
		s.frontier.advance(4)
		got := make(chan int64, 1)
		go func() {
			revision, err := s.Revision(t.Context())
			if err != nil {
				revision = -1
			}
			got <- revision
		}()
		synctest.Wait()
		require.Empty(t, got)
		s.frontier.advance(5)
		require.EqualValues(t, 5, <-got)
		s.query.close()
	})
}
