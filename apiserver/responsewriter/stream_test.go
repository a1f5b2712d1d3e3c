package responsewriter

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// stream begins a watch.
func (e exchange) stream(t *testing.T, objects int) *Stream {
	t.Helper()
	s, err := e.Stream(e.ctx, e, time.Hour)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	require.NoError(t, s.Begin(e.ctx, "application/json", objects, false))
	return s
}

func TestStream_CountsTheWatchesOfAUser(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(0) // two for each user
	e := l.open(t, httptest.NewRecorder(), "a")
	first, err := e.Stream(e.ctx, e, time.Hour)
	require.NoError(t, err)
	leave, err := e.CountWatch(e.ctx) // one that another server answers
	require.NoError(t, err)
	_, err = e.Stream(e.ctx, e, time.Hour)
	require.True(t, apierrors.IsTooManyRequests(err))
	other := l.open(t, httptest.NewRecorder(), "b")
	_, err = other.CountWatch(other.ctx)
	require.NoError(t, err)
	leave()
	again, err := e.Stream(e.ctx, e, time.Hour)
	require.NoError(t, err)
	first.Close()
	again.Close()
	require.Zero(t, l.watches.Load())
	master := l.open(t, httptest.NewRecorder(), "admin", authn.GroupMasters)
	for range 3 {
		_, err := master.CountWatch(master.ctx)
		require.NoError(t, err)
	}
}

func TestStream_IsRejectedWhenThereIsNoMemoryForMoreWatches(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(watchMemory)
	e, other := l.open(t, httptest.NewRecorder(), "a"), l.open(t, httptest.NewRecorder(), "b")
	first, err := e.Stream(e.ctx, e, time.Hour)
	require.NoError(t, err)
	for range 3 {
		_, err = other.Stream(other.ctx, other, time.Hour)
		require.True(t, apierrors.IsTooManyRequests(err))
	}
	require.Equal(t, int64(1), l.watches.Load(), "watches that were rejected are not counted")
	master := l.open(t, httptest.NewRecorder(), "admin", authn.GroupMasters)
	second, err := master.Stream(master.ctx, master, time.Hour)
	require.NoError(t, err)
	first.Close()
	second.Close()
	_, err = other.Stream(other.ctx, other, time.Hour)
	require.NoError(t, err)
}

// A watch holds memory and its seat while it sends its initial events, and later on only for a large batch.
func TestStream_HoldsNothingAtRest(t *testing.T) {
	t.Parallel()
	client := httptest.NewRecorder()
	l := newTestLimiter(1 << 20)
	e := l.seated(t, client, "watch")
	s := e.stream(t, 1)
	require.True(t, s.Initial())
	require.NoError(t, s.BeginBatch(e.ctx))
	require.Equal(t, int64(initialMemory), l.Memory.Used())
	require.NoError(t, s.Append(e.ctx, 100<<10, item(streamChunk+1)))
	require.Equal(t, int64(initialMemory), l.Memory.Used(), "a chunk's memory is released when it has been sent")
	require.Equal(t, streamChunk+1, client.Body.Len())
	require.NoError(t, s.Append(e.ctx, 0, item(1)))
	require.Equal(t, streamChunk+1, client.Body.Len(), "a short chunk is held back")
	require.NoError(t, s.Flush(e.ctx))
	require.Equal(t, streamChunk+2, client.Body.Len())
	require.False(t, l.seatIsFree(t))
	s.EndInitial()
	require.True(t, l.seatIsFree(t))
	require.Zero(t, l.Memory.Used())

	reserved := int64(0)
	require.NoError(t, s.Append(e.ctx, 200<<10, func(buf []byte) ([]byte, error) {
		reserved = l.Memory.Used()
		return append(buf, make([]byte, streamChunk)...), nil
	}))
	require.Equal(t, int64(200<<10), reserved)
	require.NoError(t, s.Flush(e.ctx))
	require.Zero(t, l.Memory.Used())
	require.Nil(t, s.buf, "a watch at rest has no buffer")
}

// The beginning of a watch waits for slots if it is long.
func TestStream_SendsManyInitialEventsInSlots(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(0)
	e, other := l.open(t, httptest.NewRecorder(), "a"), l.open(t, httptest.NewRecorder(), "other")
	known := &slot{w: other.Writer, needed: true}
	require.NoError(t, known.acquire(other.ctx))
	ended, end := context.WithCancel(e.ctx)
	end()
	long, err := e.Stream(e.ctx, e, time.Hour)
	require.NoError(t, err)
	require.ErrorIs(t, long.Begin(ended, "application/json", LongList, false), context.Canceled)
	require.Zero(t, e.Code(), "nothing was sent")
	long.Close()

	s := e.stream(t, LongList-1)
	for range LongList - 1 {
		require.NoError(t, s.Append(ended, 0, item(1)))
	}
	require.NoError(t, s.Flush(ended))
	require.NoError(t, s.BeginBatch(ended), "a short beginning does not wait")
	require.NoError(t, s.Append(ended, 0, item(1)))
	require.NoError(t, s.Flush(ended))
	require.ErrorIs(t, s.BeginBatch(ended), context.Canceled)
	known.release()
	require.NoError(t, s.BeginBatch(e.ctx))
	require.False(t, l.slots.TryTake())
	s.EndInitial()
	require.True(t, l.slots.TryTake())
	require.NoError(t, s.BeginBatch(ended), "a watch at rest needs no slot")
}

func TestStream_EndsWithWhatIsLeft(t *testing.T) {
	t.Parallel()
	client := httptest.NewRecorder()
	l := newTestLimiter(1 << 20)
	e := l.open(t, client, "a")
	s := e.stream(t, 0)
	s.EndInitial()
	require.NoError(t, s.Append(e.ctx, 0, item(FreeMemory/2-1000)))
	holder := l.open(t, httptest.NewRecorder(), "holder")
	require.NoError(t, holder.Reserve(holder.ctx, 1<<20))
	ended, end := context.WithCancel(e.ctx)
	end()
	require.ErrorIs(t, s.Append(ended, 100<<10, item(1)), context.Canceled)
	s.End(func(buf []byte) []byte { return append(buf, "end"...) })
	require.Equal(t, FreeMemory/2-1000+len("end"), client.Body.Len())
}

func TestStream_StopsEncodingOnceTheClientHasGone(t *testing.T) {
	t.Parallel()
	e := newTestLimiter(0).open(t, gone{httptest.NewRecorder()}, "a")
	s := e.stream(t, 0)
	s.EndInitial()
	require.NoError(t, s.Append(e.ctx, 0, item(streamChunk+1)))
	require.NoError(t, s.Append(e.ctx, 0, func([]byte) ([]byte, error) { panic("the client has gone") }))
	require.Error(t, s.Flush(e.ctx))
	s.End(func([]byte) []byte { panic("the client has gone") })
}
