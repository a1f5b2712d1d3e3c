package budget

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBudget_ServesInOrderAndTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(100, time.Second)
		first := b.Open()
		require.NoError(t, first.Charge(t.Context(), 80))
		var order []int
		var waiting sync.WaitGroup
		for i, n := range []int64{60, 50} {
			waiting.Go(func() {
				a := b.Open()
				defer a.Close()
				if err := a.Charge(t.Context(), n); err != nil {
					t.Error(err)
				}
				order = append(order, i)
			})
			synctest.Wait()
		}
		small := b.Open()
		require.False(t, small.Try(1), "a request does not overtake the waiters")
		require.Equal(t, 2, b.waiting())
		first.Close()
		waiting.Wait()
		require.Equal(t, []int{0, 1}, order)
		require.Zero(t, b.Used())

		require.NoError(t, first.Charge(t.Context(), 80))
		began := time.Now()
		require.ErrorIs(t, small.Charge(t.Context(), 30), ErrFull)
		require.Equal(t, time.Second, time.Since(began))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, small.Charge(ctx, 30), context.Canceled)
		require.True(t, small.Try(20), "a waiter that has given up does not block others")
		first.Close()
		small.Close()
		require.Zero(t, b.Used())
	})
}

func TestBudget_ServesAChargeLargerThanTheBudgetAlone(t *testing.T) {
	t.Parallel()
	b := New(100, time.Minute)
	a := b.Open()
	require.NoError(t, a.Charge(t.Context(), 1000))
	require.EqualValues(t, 100, b.Used())
	other := b.Open()
	require.False(t, other.Try(1))
	other.Force(50) // for requests that must never wait
	a.Close()
	other.Close()
	require.Zero(t, b.Used())
}

// Each request holds a part and waits for bytes that the others hold: none could ever go on.
func TestBudget_BreaksDeadlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(100, time.Hour)
		sizes := []int64{20, 40, 40}
		accounts := make([]Account, len(sizes))
		results := make([]error, len(sizes))
		for i, n := range sizes {
			accounts[i] = b.Open()
			require.True(t, accounts[i].Try(n))
		}
		began := time.Now()
		var waiting sync.WaitGroup
		for i := range accounts {
			waiting.Go(func() {
				results[i] = accounts[i].Charge(t.Context(), 40)
				accounts[i].Close()
			})
			synctest.Wait()
		}
		waiting.Wait()
		require.Equal(t, []error{nil, nil, ErrFull}, results, "the last waiter of the ones that hold most")
		require.Zero(t, time.Since(began))
		require.Zero(t, b.Used())
		require.Zero(t, b.stuck)
		require.Zero(t, b.waiting())
	})
}

// A request that does not wait will release its bytes, and the release serves the waiters.
func TestBudget_SeesNoDeadlockWhileARequestRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(100, time.Hour)
		busy, first, second := b.Open(), b.Open(), b.Open()
		require.True(t, busy.Try(1))
		require.True(t, first.Try(50))
		require.True(t, second.Try(49))
		var order []string
		var waiting sync.WaitGroup
		waiting.Go(func() {
			assert.NoError(t, first.Charge(t.Context(), 1))
			order = append(order, "first")
			first.Close()
		})
		synctest.Wait()
		waiting.Go(func() {
			assert.NoError(t, second.Charge(t.Context(), 10))
			order = append(order, "second")
			second.Close()
		})
		synctest.Wait()
		require.Empty(t, order)
		busy.Close()
		waiting.Wait()
		require.Equal(t, []string{"first", "second"}, order)
		require.Zero(t, b.stuck)
	})
}

func TestBudget_RejectsAHolderThatNeedsMoreThanTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(100, time.Hour)
		a := b.Open()
		require.True(t, a.Try(30))
		require.False(t, a.Try(90))
		began := time.Now()
		require.ErrorIs(t, a.Charge(t.Context(), 90), ErrFull)
		require.Zero(t, time.Since(began))
		require.EqualValues(t, 30, b.Used())
		a.Close()
		require.Zero(t, b.Used())
	})
}

func TestBudget_ServesWaitersWhenItGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(10, time.Hour)
		full := b.Open()
		require.True(t, full.Try(10))
		served := make(chan error)
		a := b.Open()
		go func() { served <- a.Charge(context.Background(), 10) }()
		synctest.Wait()
		b.Resize(20)
		require.NoError(t, <-served)
	})
}

func TestBudget_IsNeverExceeded(t *testing.T) {
	t.Parallel()
	b := New(100, time.Minute)
	var now, most atomic.Int64
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			for j := range 500 {
				a := b.Open()
				n := int64(1 + (i*31+j*7)%60)
				if err := a.Charge(t.Context(), n); err != nil {
					t.Error(err)
				}
				for now, seen := now.Add(n), most.Load(); now > seen && !most.CompareAndSwap(seen, now); {
					seen = most.Load()
				}
				now.Add(-n)
				a.Close()
			}
		})
	}
	clients.Wait()
	require.LessOrEqual(t, most.Load(), int64(100))
	require.Zero(t, b.Used())
}

func TestBudget_WithoutALimitNeverWaits(t *testing.T) {
	t.Parallel()
	var none *Account
	require.NoError(t, none.Charge(t.Context(), 1<<40))
	none.Close()
	a := New(0, time.Second).Open()
	require.NoError(t, a.Charge(t.Context(), 1<<40))
	require.True(t, a.Try(1<<40))
	require.Zero(t, a.Reserved())
}

func TestCgroupLimit_IsTheLowestOfAllParents(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  int64
	}{
		"version 2": {fstest.MapFS{
			"proc/self/cgroup":                  file("0::/pod/main\n"),
			"sys/fs/cgroup/pod/main/memory.max": file("max\n"),
			"sys/fs/cgroup/pod/memory.max":      file("268435456\n"),
		}, 256 << 20},
		"in a namespace of cgroups": {fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("1048576\n"),
		}, 1 << 20},
		"version 1": {fstest.MapFS{
			"proc/self/cgroup": file("8:cpu,cpuacct:/a\n5:memory:/docker/x\n1:name=systemd:/\n"),
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": file("536870912\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712\n"),
		}, 512 << 20},
		"no limit": {fstest.MapFS{
			"proc/self/cgroup":                           file("5:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 0},
		"no cgroups": {fstest.MapFS{}, 0},
	} {
		got, ok := cgroupLimit(c.files)
		assert.Equal(t, c.want > 0, ok, name)
		if ok {
			assert.Equal(t, c.want, got, name)
		}
	}
}

func TestMachineMemory_ReadsMeminfo(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 2048<<10, machineMemory(fstest.MapFS{"proc/meminfo": {Data: []byte(
		"MemTotal:           2048 kB\nMemFree:              12 kB\n")}}))
	require.Zero(t, machineMemory(fstest.MapFS{}))
	require.Zero(t, machineMemory(fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: much kB")}}))
}

func TestGoLimit_LeavesRoomForPagesOfFiles(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 184<<20, goLimit(256<<20))
	require.EqualValues(t, 32<<20, goLimit(64<<20))
	require.EqualValues(t, 9<<30, goLimit(10<<30))
	require.EqualValues(t, minSize, sizeWithin(200<<20, 190<<20))
	require.EqualValues(t, 50<<20, sizeWithin(200<<20, 100<<20))
}

func TestFollow_KeepsTheEstimateWhileRequestsHaveNotAllocatedYet(t *testing.T) {
	t.Parallel()
	const store = 110 << 20
	others := othersNow(0, store, 0)
	require.EqualValues(t, store, others)
	for range 10 {
		others = othersNow(others, store, 40<<20)
	}
	require.Greater(t, others, int64(store)*95/100, "requests have charged much and allocated little")
	require.EqualValues(t, store+30<<20, othersNow(others, store+70<<20, 40<<20), "it rises at once")
	for range 1000 {
		others = othersNow(others, store/2, 0)
	}
	require.EqualValues(t, store/2, others, "half of the store was deleted")
}

func BenchmarkAccount(b *testing.B) {
	for name, size := range map[string]int64{"no limit": 0, "limit": 1 << 40} {
		budget := New(size, time.Second)
		b.Run(name, func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					a := budget.Open()
					_ = a.Charge(context.Background(), 32<<10)
					a.Close()
				}
			})
		})
	}
}

func TestTimeout_FiresWhileOthersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(100, time.Minute)
		holder, prompt, other := b.Open(), b.Open(), b.Open()
		require.True(t, holder.Try(80))
		ends := 0
		timeout := holder.StartTimeout(time.Now().Add(time.Second), func() { ends++ })
		time.Sleep(2 * time.Second)
		require.True(t, other.Try(20), "no request waits")
		require.True(t, timeout.Stop())
		require.Zero(t, ends, "no request has waited")
		other.Close()

		timeout = holder.StartTimeout(time.Now().Add(time.Second), func() { ends++ })
		require.True(t, prompt.Try(10))
		early := prompt.StartTimeout(time.Now().Add(time.Hour), func() { t.Error("it has time") })
		go func() {
			<-time.After(1500 * time.Millisecond)
			assert.False(t, timeout.Stop())
			holder.Close()
		}()
		began := time.Now()
		require.NoError(t, other.Charge(t.Context(), 50))
		require.Equal(t, 1500*time.Millisecond, time.Since(began))
		require.Greater(t, ends, 1, "again until it is stopped")
		require.True(t, early.Stop())
		require.False(t, timeout.Stop(), "it stays so")
		other.Close()
		prompt.Close()
		require.Zero(t, b.Used())
		require.Empty(t, b.timeouts)
	})
}

func TestTimeout_WithoutALimitNeverFires(t *testing.T) {
	t.Parallel()
	a := New(0, time.Minute).Open()
	require.True(t, a.StartTimeout(time.Time{}, func() { t.Error("called") }).Stop())
	require.True(t, (*Account)(nil).StartTimeout(time.Time{}, nil).Stop())
}

// A slow request is charged without waiting. If the budget is exceeded, the timeout with the earliest deadline fires.
func TestChargeSlow_FiresTheEarliestTimeout(t *testing.T) {
	t.Parallel()
	b := New(100, time.Minute)
	var called []string
	charge := func(name string, until int) *Timeout {
		return b.ChargeSlow(40, time.Unix(int64(until), 0), func() { called = append(called, name) })
	}
	first, second := charge("first", 2), charge("second", 1)
	require.Empty(t, called)
	third := charge("third", 3)
	require.Equal(t, []string{"second"}, called)
	fourth := charge("fourth", 4)
	require.Equal(t, []string{"second", "first"}, called, "each once")
	require.EqualValues(t, 160, b.Used())
	require.False(t, first.Stop())
	require.False(t, second.Stop())
	require.EqualValues(t, 80, b.Used())
	require.True(t, third.Stop())
	require.True(t, third.Stop())
	require.True(t, fourth.Stop())
	require.Zero(t, b.Used())
	require.True(t, New(0, time.Minute).ChargeSlow(40, time.Time{}, nil).Stop(), "without a limit it never fires")
}
