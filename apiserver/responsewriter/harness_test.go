package responsewriter

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol/config"
)

const (
	patience = time.Minute
	tick     = time.Millisecond
)

// newTestLimiter returns a Limiter with a budget of so many bytes, one slot, and one seat for all users that are no
// member of system:masters.
func newTestLimiter(memory int64) *Limiter {
	l := NewLimiter(Options{RequestMemory: memory, MemoryWait: patience, WatchesPerUser: 2, StreamMemory: -1})
	l.slots = flowcontrol.NewSlots(1)
	l.Flow = config.New(flowcontrol.New(flowcontrol.Options{Seats: 1, QueueWait: patience,
		Levels: mandatory.PriorityLevels(), Schemas: mandatory.FlowSchemas()}), nil, slog.Default())
	return l
}

// exchange is a request of a user with its Writer.
type exchange struct {
	*Writer
	ctx context.Context
}

// open begins a request whose response is written to to.
func (l *Limiter) open(t *testing.T, to http.ResponseWriter, user string, groups ...string) exchange {
	t.Helper()
	ctx := authn.WithUser(t.Context(), &authn.User{Name: user, Groups: groups})
	w := &Writer{}
	require.True(t, w.Open(l, to, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)))
	t.Cleanup(w.Close)
	return exchange{w, ctx}
}

// seated begins a request that has taken its seat.
func (l *Limiter) seated(t *testing.T, to http.ResponseWriter, verb string) exchange {
	t.Helper()
	e := l.open(t, to, "jane")
	require.NoError(t, e.takeSeat(verb))
	return e
}

func (e exchange) takeSeat(verb string) error {
	user := authn.UserFrom(e.ctx)
	return e.TakeSeats(e.ctx, http.Header{}, flowcontrol.Request{User: user.Name, Groups: user.Groups, Verb: verb,
		Resource: "pods", Seats: 1})
}

// seatIsFree takes the one seat and returns it; false if it is not free.
func (l *Limiter) seatIsFree(t *testing.T) bool {
	e := l.open(t, httptest.NewRecorder(), "other")
	defer e.ReleaseSeats()
	return e.takeSeat("get") == nil
}

// blocked is a client that reads nothing until it is let go on.
type blocked struct {
	*httptest.ResponseRecorder
	reads chan struct{}
}

func newBlocked() blocked { return blocked{httptest.NewRecorder(), make(chan struct{})} }

func (b blocked) Write(p []byte) (int, error) {
	<-b.reads
	return b.ResponseRecorder.Write(p)
}

// SetWriteDeadline is called where the client is cut off.
func (b blocked) SetWriteDeadline(time.Time) error {
	select {
	case <-b.reads:
	default:
		close(b.reads)
	}
	return nil
}
