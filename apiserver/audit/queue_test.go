package audit

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// collector records the batches that a queue writes.
type collector struct {
	batches chan string
	events  chan int
	hold    chan struct{} // if not nil, writes block until it is closed
}

func newCollector() *collector {
	return &collector{batches: make(chan string, 1000), events: make(chan int, 1000)}
}

func (c *collector) write(_ context.Context, lines []byte, events int) bool {
	if c.hold != nil {
		<-c.hold
	}
	c.batches <- string(lines)
	c.events <- events
	return true
}

func TestQueue_WritesFullOrOldBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCollector()
		q := newQueue(BatchOptions{BufferSize: 100, MaxSize: 3, MaxWait: time.Minute}, 1000, 2, c.write)
		start := time.Now()
		for _, line := range []string{"a\n", "b\n", "c\n", "d\n"} {
			require.NoError(t, q.put([]byte(line)))
		}
		require.Equal(t, "a\nb\nc\n", <-c.batches)
		require.Zero(t, time.Since(start))
		require.Equal(t, "d\n", <-c.batches)
		require.Equal(t, time.Minute, time.Since(start))
		require.NoError(t, q.put([]byte("e\n")))
		q.close()
		require.Equal(t, "e\n", <-c.batches, "what waits is written at the end")
		require.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, q.put([]byte("f\n")), errClosed)
	})
}

func TestQueue_LimitsEventsAndBytesWithoutBlocking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCollector()
		c.hold = make(chan struct{})
		q := newQueue(BatchOptions{BufferSize: 5, MaxSize: 1}, 1000, 1, c.write)
		require.NoError(t, q.put([]byte("a\n")))
		synctest.Wait() // the batch is being written
		for range 5 {
			require.NoError(t, q.put([]byte("b\n")))
		}
		require.ErrorIs(t, q.put([]byte("c\n")), errFull)
		close(c.hold)
		synctest.Wait()
		require.Len(t, c.batches, 6)
		require.Zero(t, q.bytes)
		q.close()

		c.hold = make(chan struct{})
		q = newQueue(BatchOptions{BufferSize: 1000, MaxSize: 10}, 32<<20, 1, c.write)
		huge := []byte(strings.Repeat("x", 32<<20))
		require.NoError(t, q.put(huge))
		require.NoError(t, q.put(huge))
		require.ErrorIs(t, q.put([]byte("c\n")), errFull, "so do those being written")
		close(c.hold)
		q.close()
	})
}

func TestQueue_ThrottlesBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCollector()
		q := newQueue(BatchOptions{BufferSize: 100, MaxSize: 1, ThrottleEnable: true, ThrottleQPS: 10,
			ThrottleBurst: 3}, 1000, 4, c.write)
		start := time.Now()
		for range 8 {
			require.NoError(t, q.put([]byte("a\n")))
		}
		for range 3 {
			<-c.batches
		}
		require.Zero(t, time.Since(start))
		for range 5 {
			<-c.batches
		}
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		q.close()
	})
}
