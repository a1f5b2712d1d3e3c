package responsewriter

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

func TestReserve_IsReleasedOnce(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	e, other := l.open(t, httptest.NewRecorder(), "a"), l.open(t, httptest.NewRecorder(), "b")
	require.NoError(t, other.Reserve(other.ctx, 100<<10))
	require.NoError(t, e.Reserve(e.ctx, FreeMemory))
	require.Equal(t, int64(100<<10), l.Memory.Used(), "each request has some memory without a reservation")
	require.NoError(t, e.Reserve(e.ctx, FreeMemory+1))
	part := &Writer{}
	require.NoError(t, e.Fork(e.ctx, part, 200<<10))
	require.Equal(t, int64(300<<10+FreeMemory+1), l.Memory.Used())
	e.Close()
	e.Close()
	require.Equal(t, int64(300<<10), l.Memory.Used(), "a fork has a reservation of its own")
	part.Close()
	part.Close()
	require.Equal(t, int64(100<<10), l.Memory.Used())
	none := &Writer{}
	none.Close()
	require.NoError(t, none.Reserve(e.ctx, 1<<30))
	part = &Writer{}
	require.NoError(t, none.Fork(e.ctx, part, 1<<30))
	require.NoError(t, part.ReserveObject(e.ctx, 1<<30), "a request of the server itself reserves nothing")
	part.Close()
}

// An account that never gets its memory would wait for a minute.
func TestReserve_DoesNotWaitForMasters(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	e, master := l.open(t, httptest.NewRecorder(), "a"), l.open(t, httptest.NewRecorder(), "admin", authn.GroupMasters)
	require.NoError(t, e.Reserve(e.ctx, 1<<20))
	require.NoError(t, master.Reserve(master.ctx, 1<<20))
	require.Equal(t, int64(2<<20), l.Memory.Used())
	master.Close()
	require.Equal(t, int64(1<<20), l.Memory.Used())
}

func TestReserveWrite_RejectsARequestThatNeverFits(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	e := l.open(t, httptest.NewRecorder(), "a")
	refused := e.ReserveWrite(e.ctx, 1<<20, 1)
	require.True(t, apierrors.IsRequestEntityTooLargeError(refused))
	require.ErrorContains(t, refused, "decoding the body and the object that it changes would take about 1048577 bytes")
	refused = e.ReserveWrite(e.ctx, 1<<20+1, 0)
	require.True(t, apierrors.IsRequestEntityTooLargeError(refused))
	require.ErrorContains(t, refused, "decoding the body would take")
	require.Zero(t, l.Memory.Used())
	require.NoError(t, e.ReserveWrite(e.ctx, 1<<19, 1<<19))
	require.Equal(t, int64(1<<20), l.Memory.Used())
}

func TestReserveObject_ReservesTheDifference(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	e := l.open(t, httptest.NewRecorder(), "a")
	require.NoError(t, e.Reserve(e.ctx, 64<<10)) // while the body is read
	require.NoError(t, e.ReserveWrite(e.ctx, 100<<10, 100<<10))
	require.Equal(t, int64(200<<10), l.Memory.Used())
	require.NoError(t, e.ReserveObject(e.ctx, 100<<10))
	require.NoError(t, e.ReserveObject(e.ctx, 50<<10))
	require.Equal(t, int64(200<<10), l.Memory.Used(), "the object's memory has been reserved with the body's")
	require.NoError(t, e.ReserveObject(e.ctx, 300<<10), "another writer has made it larger")
	require.NoError(t, e.ReserveObject(e.ctx, 300<<10))
	require.Equal(t, int64(400<<10), l.Memory.Used())
	part := &Writer{}
	require.NoError(t, e.Fork(e.ctx, part, 100<<10))
	require.NoError(t, part.ReserveObject(e.ctx, 100<<10))
	require.Equal(t, int64(500<<10), l.Memory.Used())
	part.Close()
}

func TestReadBody_ReservesMemoryAsItArrives(t *testing.T) {
	t.Parallel()
	for announced, length := range map[int64]int{1 << 40: 100_000, -1: 100_000, 100_000: 100_000, 1<<40 + 1: 1000} {
		l := newTestLimiter(1 << 20)
		e := l.open(t, httptest.NewRecorder(), "a")
		content := strings.NewReader(strings.Repeat("x", length))
		r := httptest.NewRequest(http.MethodPost, "/", content).WithContext(e.ctx)
		r.ContentLength = announced
		body, err := e.ReadBody(e, r, 200_000)
		require.NoError(t, err)
		require.Len(t, body, length)
		if length < FreeMemory {
			require.Zero(t, l.Memory.Used(), "an announced length is not reserved")
			continue
		}
		require.GreaterOrEqual(t, l.Memory.Used(), int64(length))
		require.LessOrEqual(t, l.Memory.Used(), int64(4*length))
	}
	l := newTestLimiter(1 << 20)
	e := l.open(t, httptest.NewRecorder(), "a")
	_, err := e.ReadBody(e, httptest.NewRequest(http.MethodPost, "/", strings.NewReader("1234")).WithContext(e.ctx), 3)
	require.ErrorAs(t, err, new(*http.MaxBytesError))
}
