package responsewriter

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestSeats_AreTakenAndReturned(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(0)
	first, second := l.open(t, httptest.NewRecorder(), "a"), l.open(t, httptest.NewRecorder(), "b")
	first.ReleaseSeats() // that it does not have
	require.NoError(t, first.takeSeat("get"))
	require.True(t, apierrors.IsTooManyRequests(second.takeSeat("get")))
	second.ReleaseSeats() // that it was not given
	require.False(t, l.seatIsFree(t))
	first.ReleaseSeats()
	first.ReleaseSeats()
	require.True(t, l.seatIsFree(t))
	l.Flow = nil
	require.NoError(t, first.takeSeat("get"), "without priority and fairness there are no seats")
	first.ReleaseSeats()
}

// While a request waits for memory, another one has its seat. It takes one again before it goes on, unless it is a list
// or a watch.
func TestSeats_AreReleasedWhileMemoryIsAwaited(t *testing.T) {
	t.Parallel()
	for verb, takesAgain := range map[string]bool{"update": true, "get": true, "list": false, "watch": false} {
		for name, wait := range map[string]func(e exchange) error{
			"its own":     func(e exchange) error { return e.Reserve(e.ctx, 512<<10) },
			"of its fork": func(e exchange) error { return e.Fork(e.ctx, &Writer{}, 512<<10) },
		} {
			l := newTestLimiter(1 << 20)
			holder := l.open(t, httptest.NewRecorder(), "holder")
			require.NoError(t, holder.Reserve(holder.ctx, 1<<20))
			e := l.seated(t, httptest.NewRecorder(), verb)
			require.False(t, l.seatIsFree(t))
			reserved := make(chan error)
			go func() { reserved <- wait(e) }()
			require.Eventually(t, func() bool { return l.seatIsFree(t) }, patience, tick, verb, name)
			holder.Close()
			require.NoError(t, <-reserved, verb)
			require.Equal(t, takesAgain, !l.seatIsFree(t), "%s %s", verb, name)
			e.ReleaseSeats()
		}
	}
}

func TestSeats_AreNotTakenAgainFromOtherRequests(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	holder := l.open(t, httptest.NewRecorder(), "holder")
	require.NoError(t, holder.Reserve(holder.ctx, 1<<20))
	e := l.seated(t, httptest.NewRecorder(), "update")
	reserved := make(chan error)
	go func() { reserved <- e.Reserve(e.ctx, 512<<10) }()
	other := l.open(t, httptest.NewRecorder(), "other")
	require.Eventually(t, func() bool { return other.takeSeat("get") == nil }, patience, tick)
	holder.Close()
	require.True(t, apierrors.IsTooManyRequests(<-reserved))
	other.ReleaseSeats()
}

var longBody = []byte(strings.Repeat("x", httpBuffer+1))

func TestSeats_AreReleasedByASlowClient(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(e exchange){
		"a write":      func(e exchange) { _, _ = e.Write(longBody) },
		"a whole body": func(e exchange) { e.WriteBody(e, http.StatusOK, false, longBody, "\n") },
	} {
		l, client := newTestLimiter(0), newBlocked()
		e := l.seated(t, client, "get")
		written := make(chan struct{})
		go func() { write(e); close(written) }()
		require.Eventually(t, func() bool { return l.seatIsFree(t) }, patience, tick, name)
		close(client.reads)
		<-written
		require.Equal(t, http.StatusOK, e.Code())
		require.GreaterOrEqual(t, e.Bytes(), int64(len(longBody)))
	}
}

// A response that its client does not read takes memory beside its reservation. If there is none, a client is cut off.
func TestGuard_CutsASlowClientOffWhenMemoryIsFull(t *testing.T) {
	t.Parallel()
	l, client := newTestLimiter(1<<20), newBlocked()
	e := l.seated(t, client, "get")
	require.NoError(t, e.Reserve(e.ctx, 1<<20))
	e.WriteBody(e, http.StatusOK, false, longBody, "") // returns because the client is cut off
	require.Equal(t, int64(1<<20), l.Memory.Used())
}
