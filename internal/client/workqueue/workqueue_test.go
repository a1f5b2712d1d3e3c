package workqueue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	clientgo "k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a queue of a test, which decides when the work on a key ends.
type bench struct {
	*Queue[string]
	clock, real *testingclock.FakeClock
	begun       chan string
	end         chan struct{}
}

func newBench(t *testing.T, o Options) *bench {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	b := &bench{
		clock: testingclock.NewFakeClock(now), real: testingclock.NewFakeClock(now),
		begun: make(chan string, 100), end: make(chan struct{}),
	}
	o.Clock = b.clock
	b.Queue = newQueue(o, b.real, func(ctx context.Context, key string) {
		b.begun <- key
		select {
		case <-b.end:
		case <-ctx.Done():
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); b.Wait() })
	b.Start(ctx)
	return b
}

func TestAdd_WorksOnAKeyOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Workers: 1})
	b.Add("first")
	require.Equal(t, "first", <-b.begun)
	b.Add("a")
	b.Add("b")
	b.Add("a")
	for _, want := range []string{"a", "b"} {
		b.end <- struct{}{}
		require.Equal(t, want, <-b.begun)
	}
	b.end <- struct{}{}
	require.Eventually(t, func() bool { return b.Busy() == "" }, time.Minute, time.Millisecond)
	require.Empty(t, b.begun)
}

func TestAdd_QueuesAKeyAgainThatIsBeingWorkedOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Workers: 2})
	b.Add("a")
	require.Equal(t, "a", <-b.begun)
	b.Add("a")
	b.Add("b")
	require.Equal(t, "b", <-b.begun, "the second worker does not take a key that the first one has")
	b.end <- struct{}{}
	b.end <- struct{}{}
	require.Equal(t, "a", <-b.begun)
	b.end <- struct{}{}
}

func TestAdd_BeforeStartIsHandledAfterStart(t *testing.T) {
	t.Parallel()
	done := make(chan string, 1)
	q := New(Options{Clock: clock.RealClock{}}, func(_ context.Context, key string) { done <- key })
	q.Add("a")
	ctx, cancel := context.WithCancel(t.Context())
	defer q.Wait()
	defer cancel()
	q.Start(ctx)
	require.Equal(t, "a", <-done)
}

func TestQueue_HasNoGoroutineWhileItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		var working, most atomic.Int64
		q := New(Options{Workers: 4, Clock: clock.RealClock{}}, func(context.Context, int) {
			now := working.Add(1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			time.Sleep(time.Second)
			working.Add(-1)
		})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		for i := range 100 {
			q.Add(i)
			q.AddAfter(i, time.Hour)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 4, most.Load())
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
		cancel()
		q.Wait()
	})
}

func TestAddAfter_DependsOnItsClockOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	b.AddAfter("later", 2*time.Hour)
	b.AddAfter("later", time.Hour)
	b.AddAfter("later", 3*time.Hour)
	b.real.Step(24 * time.Hour)
	b.clock.Step(time.Hour - 1)
	require.Empty(t, b.Busy())
	b.clock.Step(1)
	require.NotEmpty(t, b.Busy(), "the key is due, whether or not the timer's function has run")
	require.Equal(t, "later", <-b.begun)
	b.end <- struct{}{}
	b.clock.Step(24 * time.Hour)
	require.Eventually(t, func() bool { return b.Busy() == "" }, time.Minute, time.Millisecond)
	require.Empty(t, b.begun, "the earliest of its times counted")
	require.False(t, b.clock.HasWaiters())
}

// walled is a clock with a wall time that the test sets. Its timers are not affected.
type walled struct {
	*testingclock.FakeClock
	ahead atomic.Int64
}

func (w *walled) Now() time.Time { return w.FakeClock.Now().Add(time.Duration(w.ahead.Load())) }

// newWalled returns a queue on such a clock. It reports the keys that it works on.
func newWalled(t *testing.T) (q *Queue[string], c *walled, done chan string) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	c, done = &walled{FakeClock: testingclock.NewFakeClock(now)}, make(chan string, 100)
	q = New(Options{Clock: c}, func(_ context.Context, key string) { done <- key })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); q.Wait() })
	q.Start(ctx)
	return q, c, done
}

// came returns the key that has been worked on, once the queue is idle.
func came(t *testing.T, q *Queue[string], done chan string) string {
	t.Helper()
	require.Eventually(t, func() bool { return q.Busy() == "" }, time.Minute, 10*time.Microsecond)
	require.NotEmpty(t, done)
	return <-done
}

// pass moves time in steps of a second, and waits after each step until all timers have been handled.
func (w *walled) pass(t *testing.T, q *Queue[string], d time.Duration) {
	t.Helper()
	for ; d > 0; d -= time.Second {
		w.Step(time.Second)
		for q.Busy() != "" {
			runtime.Gosched()
		}
	}
}

func TestAddAt_AddsAtTheMoment(t *testing.T) {
	t.Parallel()
	q, c, done := newWalled(t)
	q.AddAt("past", c.Now().Add(-time.Hour))
	require.Equal(t, "past", came(t, q, done))
	q.AddAt("now", c.Now())
	require.Equal(t, "now", came(t, q, done))
	moment := c.Now().Add(time.Minute)
	q.AddAt("later", moment.Add(time.Minute))
	q.AddAt("later", moment)
	q.AddAt("later", moment.Add(time.Hour))
	c.pass(t, q, 59*time.Second)
	require.Empty(t, done)
	c.pass(t, q, time.Second)
	require.Equal(t, "later", came(t, q, done))
	c.pass(t, q, time.Hour+time.Minute)
	require.Empty(t, done, "the earliest of its moments counted")
	require.False(t, c.HasWaiters())
}

func TestAddAt_AddsSoonIfTheWallClockIsSetForwards(t *testing.T) {
	t.Parallel()
	q, c, done := newWalled(t)
	q.AddAt("soon", c.Now().Add(time.Hour))
	q.AddAt("later", c.Now().Add(3*time.Hour))
	c.pass(t, q, time.Minute)
	c.ahead.Store(int64(2 * time.Hour))
	c.pass(t, q, recheck)
	require.Equal(t, "soon", came(t, q, done))
	require.Empty(t, done)
	c.pass(t, q, 58*time.Minute)
	require.Empty(t, done)
	c.pass(t, q, time.Minute)
	require.Equal(t, "later", came(t, q, done))
}

func TestAddAt_WaitsIfTheWallClockIsSetBack(t *testing.T) {
	t.Parallel()
	q, c, done := newWalled(t)
	q.AddAt("moment", c.Now().Add(time.Minute))
	c.ahead.Store(int64(-time.Hour))
	c.pass(t, q, time.Minute)
	require.Empty(t, done)
	c.pass(t, q, time.Hour-time.Second)
	require.Empty(t, done)
	c.pass(t, q, time.Second)
	require.Equal(t, "moment", came(t, q, done))
}

func TestAddAt_AddsInTimeIfTheWallClockIsSetBackAndForth(t *testing.T) {
	t.Parallel()
	q, c, done := newWalled(t)
	q.AddAt("moment", c.Now().Add(time.Hour))
	for _, ahead := range []time.Duration{-time.Hour, time.Hour / 2, -10 * time.Hour, 0} {
		c.ahead.Store(int64(ahead))
		c.pass(t, q, time.Minute)
		require.Empty(t, done)
	}
	c.pass(t, q, 56*time.Minute-time.Second)
	require.Empty(t, done)
	c.pass(t, q, time.Second)
	require.Equal(t, "moment", came(t, q, done))
}

// TestAddAt_ReadsTheMachinesClock uses moments with a reading of the monotonic clock, which AddAt must ignore.
func TestAddAt_ReadsTheMachinesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan time.Time, 1)
		q := New(Options{Clock: clock.RealClock{}}, func(context.Context, string) { done <- time.Now() })
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		moment := time.Now().Add(time.Hour + time.Millisecond)
		q.AddAt("a", moment)
		require.True(t, moment.Equal(<-done))
		q.AddAt("a", time.Now().Add(time.Hour))
		cancel()
		q.Wait()
	})
}

// TestAddAt_StopsAManualClockOnce moves a clock by hand: it must stop at the moment, and at no other on the way.
func TestAddAt_StopsAManualClockOnce(t *testing.T) {
	t.Parallel()
	start := time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC)
	c, done := virtualtime.New(start), make(chan time.Time, 10)
	stops := 0
	c.AddRest(func(context.Context) error { stops++; return nil })
	q := New(Options{Clock: c}, func(context.Context, string) { done <- c.Now() })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); q.Wait() })
	q.Start(ctx)
	q.AddAt("a", start.Add(365*24*time.Hour))
	require.NoError(t, c.Advance(t.Context(), 366*24*time.Hour))
	require.Equal(t, start.Add(365*24*time.Hour), <-done)
	require.Equal(t, 2, stops, "before the first step, and at the moment")
}

func TestRetry_WaitsInRealTimeAndDoubles(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{MinRetry: 400 * time.Millisecond, MaxRetry: time.Second})
	for _, want := range []time.Duration{400 * time.Millisecond, 800 * time.Millisecond, time.Second, time.Second} {
		b.Retry("a")
		require.NotEmpty(t, b.Busy())
		b.clock.Step(time.Hour)
		b.real.Step(want - 1)
		require.Empty(t, b.begun)
		b.real.Step(want/5 + 1) // the random part
		require.Equal(t, "a", <-b.begun)
		b.end <- struct{}{}
	}
	require.Equal(t, 4, b.Retries("a"))
	b.Forget("a")
	require.Zero(t, b.Retries("a"))
	b.Retry("a")
	b.real.Step(480 * time.Millisecond)
	require.Equal(t, "a", <-b.begun)
	b.end <- struct{}{}
}

func TestBusy_DescribesWorkThatIsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{MinRetry: 600 * time.Millisecond, MaxRetry: time.Hour})
	require.Empty(t, b.Busy())
	b.AddAfter("default/web", time.Minute)
	require.Empty(t, b.Busy(), "what is to be done later is no work yet")
	b.clock.Step(time.Minute)
	require.Equal(t, "default/web", <-b.begun)
	require.Equal(t, "default/web is being worked on", b.Busy())
	b.Retry("default/web")
	b.end <- struct{}{}
	require.Eventually(t, func() bool { return b.Busy() == "default/web will be tried again (1)" }, time.Minute,
		time.Millisecond)
	b.real.Step(720 * time.Millisecond)
	require.Equal(t, "default/web", <-b.begun)
	b.Retry("default/web")
	b.end <- struct{}{}
	require.Eventually(t, func() bool { return b.Busy() == "" }, time.Minute, time.Millisecond,
		"a retry that is due in more than a second is not waited for")
}

func TestWait_ReturnsAfterTheLastWorker(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), atomic.Bool{}
	q := New(Options{Clock: clock.RealClock{}}, func(ctx context.Context, _ string) {
		close(begun)
		<-ctx.Done()
		ended.Store(true)
	})
	ctx, cancel := context.WithCancel(t.Context())
	q.Start(ctx)
	q.Add("a")
	q.Add("never")
	<-begun
	cancel()
	q.Wait()
	require.True(t, ended.Load())
	q.Add("b") // close would panic if a worker took it
	require.Empty(t, q.Busy())
}

// No key may be at two workers, and each must be worked on after its last Add.
func TestQueue_KeepsItsRulesUnderLoad(t *testing.T) {
	t.Parallel()
	const keys, adds = 10, 20_000
	var added, seen [keys]atomic.Int64
	var at [keys]atomic.Bool
	q := New(Options{Workers: 5, Clock: clock.RealClock{}, MinRetry: time.Microsecond, MaxRetry: time.Millisecond},
		func(context.Context, int) {})
	q.work = func(_ context.Context, key int) {
		if at[key].Swap(true) {
			t.Errorf("%d is at two workers", key)
		}
		seen[key].Store(added[key].Load())
		at[key].Store(false)
		if rand.IntN(10) == 0 {
			q.Retry(key)
		} else {
			q.Forget(key)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	q.Start(ctx)
	var adders sync.WaitGroup
	for range 4 {
		adders.Go(func() {
			for range adds / 4 {
				key := rand.IntN(keys)
				added[key].Add(1)
				if rand.IntN(4) == 0 {
					q.AddAfter(key, time.Duration(rand.IntN(100))*time.Microsecond)
				} else {
					q.Add(key)
				}
			}
		})
	}
	adders.Wait()
	for key := range keys {
		require.Eventually(t, func() bool { return added[key].Load() == seen[key].Load() }, time.Minute,
			time.Millisecond)
	}
	cancel()
	q.Wait()
}

func TestMetrics_MatchKubeControllerManager(t *testing.T) {
	t.Parallel()
	m := NewMetrics()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	b := newBench(t, Options{Name: "web", Metrics: m, MinRetry: time.Second, MaxRetry: time.Second})
	b.Add("a")
	b.Add("b")
	b.Retry("c")
	<-b.begun
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		require.Len(t, f.Metric, 1)
		require.Equal(t, "web", f.Metric[0].Label[0].GetValue())
		got[f.GetName()] = f.Metric[0].GetCounter().GetValue() + f.Metric[0].GetGauge().GetValue() +
			float64(f.Metric[0].GetHistogram().GetSampleCount())
	}
	require.Positive(t, got["workqueue_unfinished_work_seconds"])
	require.Positive(t, got["workqueue_longest_running_processor_seconds"])
	delete(got, "workqueue_unfinished_work_seconds")
	delete(got, "workqueue_longest_running_processor_seconds")
	require.Equal(t, map[string]float64{
		"workqueue_adds_total": 2, "workqueue_depth": 1, "workqueue_retries_total": 1,
		"workqueue_queue_duration_seconds": 1, "workqueue_work_duration_seconds": 0,
	}, got)
}

func ExampleQueue() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	q := New(Options{Name: "greetings", Workers: 2, Clock: clock.RealClock{}}, func(_ context.Context, name string) {
		fmt.Println("hello,", name)
		close(done)
	})
	q.Start(ctx)
	q.Add("world")
	<-done
	cancel()
	q.Wait()
	// Output: hello, world
}

// BenchmarkQueue measures the time from Add to the end of the work, beside client-go's queue.
func BenchmarkQueue(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		var done sync.WaitGroup
		q := New(Options{Workers: 5, Clock: clock.RealClock{}}, func(context.Context, int) { done.Done() })
		ctx, cancel := context.WithCancel(b.Context())
		q.Start(ctx)
		for i := 0; b.Loop(); i++ {
			done.Add(1)
			q.Add(i)
		}
		done.Wait()
		cancel()
		q.Wait()
	})
	b.Run("client-go's", func(b *testing.B) {
		b.ReportAllocs()
		var done, workers sync.WaitGroup
		q := clientgo.NewTypedRateLimitingQueue(clientgo.DefaultTypedControllerRateLimiter[int]())
		for range 5 {
			workers.Go(func() {
				for key, stopped := q.Get(); !stopped; key, stopped = q.Get() {
					done.Done()
					q.Done(key)
				}
			})
		}
		for i := 0; b.Loop(); i++ {
			done.Add(1)
			q.Add(i)
		}
		done.Wait()
		q.ShutDown()
		workers.Wait()
	})
}
