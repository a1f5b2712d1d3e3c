package responsewriter

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// item appends an item of a list.
func item(size int) func(buf []byte) ([]byte, error) {
	return func(buf []byte) ([]byte, error) { return append(buf, strings.Repeat("x", size)...), nil }
}

func TestList_KnowsTheLengthOfAShortBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		size, item, items int
		length            string
	}{
		"short, of unknown length": {-1, 10, 3, "30"},
		"long, of unknown length":  {-1, listChunk, 3, ""},
		"short, of known length":   {30, 10, 3, "30"},
		"long, of known length":    {3 * listChunk, listChunk, 3, strconv.Itoa(3 * listChunk)},
	} {
		client := httptest.NewRecorder()
		e := newTestLimiter(0).open(t, client, "jane")
		list := e.List(e, "application/json", false)
		require.NoError(t, list.BeginEncoding(e.ctx, c.items, false))
		list.BeginBody(c.size)
		for range c.items {
			require.NoError(t, list.Append(e.ctx, item(c.item)))
		}
		list.Flush()
		list.Close()
		require.Equal(t, c.length, client.Header().Get("Content-Length"), name)
		require.Equal(t, "application/json", client.Header().Get("Content-Type"), name)
		require.Equal(t, c.items*c.item, client.Body.Len(), name)
	}
}

func TestList_CompressesALongBody(t *testing.T) {
	t.Parallel()
	for size, encoding := range map[int]string{gzipThreshold: "", gzipThreshold + 1: "gzip"} {
		for _, known := range []int{-1, size} {
			client := httptest.NewRecorder()
			e := newTestLimiter(0).open(t, client, "jane")
			list := e.List(e, "application/json", true)
			require.NoError(t, list.BeginEncoding(e.ctx, 1, false))
			list.BeginBody(known)
			require.NoError(t, list.Append(e.ctx, item(size)))
			list.Flush()
			list.Close()
			require.Equal(t, encoding, client.Header().Get("Content-Encoding"))
		}
	}
}

// A list that was selected and is not sent leaves the response to the error.
func TestList_SendsNothingBeforeItsFirstChunk(t *testing.T) {
	t.Parallel()
	client := httptest.NewRecorder()
	l := newTestLimiter(0)
	e := l.open(t, client, "jane")
	list := e.List(e, "application/json", false)
	require.NoError(t, list.BeginSelection(e.ctx, LongList))
	require.False(t, l.slots.TryTake())
	list.EndSelection()
	require.NoError(t, list.BeginEncoding(e.ctx, LongList, true), "another server converts the list: it needs no slot")
	require.True(t, l.slots.TryTake())
	l.slots.Leave()
	list.BeginBody(-1)
	broken := errors.New("an object is damaged")
	require.NoError(t, list.Append(e.ctx, item(10)))
	require.ErrorIs(t, list.Append(e.ctx, func(buf []byte) ([]byte, error) { return buf, broken }), broken)
	list.Close()
	require.Zero(t, e.Code())
	require.Zero(t, client.Body.Len())
}

func TestList_StopsEncodingOnceTheClientHasGone(t *testing.T) {
	t.Parallel()
	e := newTestLimiter(0).open(t, gone{httptest.NewRecorder()}, "jane")
	list := e.List(e, "application/json", false)
	require.NoError(t, list.BeginEncoding(e.ctx, LongList, false))
	list.BeginBody(-1)
	require.NoError(t, list.Append(e.ctx, item(listChunk+1)))
	require.NoError(t, list.Append(e.ctx, func([]byte) ([]byte, error) { panic("the client has gone") }))
	list.AppendBytes(func([]byte) []byte { panic("the client has gone") })
	list.Flush()
	list.Close()
}

// gone is a client that has gone.
type gone struct{ *httptest.ResponseRecorder }

func (gone) Write([]byte) (int, error) { return 0, http.ErrHandlerTimeout }

// Between its chunks a long list waits for other lists. If its time ends meanwhile, the response must not look
// complete. If its client leaves, there is no one to see it.
func TestList_FailsWhenItsTimeEndsBetweenTwoSlots(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(0)
	e, other := l.open(t, httptest.NewRecorder(), "jane"), l.open(t, httptest.NewRecorder(), "other")
	late, stop := context.WithTimeout(e.ctx, 0)
	defer stop()
	left, leave := context.WithCancel(e.ctx)
	leave()
	for _, c := range []struct {
		ctx context.Context
		err error
	}{{late, context.DeadlineExceeded}, {left, nil}} {
		list := e.List(e, "application/json", false)
		require.NoError(t, list.BeginEncoding(e.ctx, LongList, false))
		list.BeginBody(-1)
		next := &slot{w: other.Writer, needed: true}
		acquired := make(chan error)
		go func() { acquired <- next.acquire(other.ctx) }()
		require.Eventually(t, func() bool { return l.slots.Waiting("other") == 1 }, patience, tick)
		require.ErrorIs(t, list.Append(c.ctx, item(listChunk+1)), c.err)
		require.NoError(t, <-acquired)
		if c.err == nil {
			require.NoError(t, list.Append(e.ctx, func([]byte) ([]byte, error) { panic("the client has left") }))
		}
		list.Close()
		require.False(t, l.slots.TryTake(), "the other list has the slot")
		next.release()
	}
}

func TestList_ReservesMemoryForItsItems(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(4 << 20)
	e := l.open(t, httptest.NewRecorder(), "jane")
	items := make([]*storage.Object, 10)
	for i := range items {
		items[i] = &storage.Object{JSON: make([]byte, 100<<10)}
	}
	form := encoding.Form{Resource: &api.Resource{}, Output: encoding.Output{Media: encoding.MediaJSON}}
	list := e.List(e, encoding.MediaJSON, true)
	require.NoError(t, list.ReserveItems(e.ctx, &form, items))
	want := int64(10*pointerSize + 2*listChunk + 100<<10 + gzipMemory)
	require.Equal(t, want, l.Memory.Used())
	require.True(t, list.Whole(4<<20/maxWhole))
	require.False(t, list.Whole(4<<20/maxWhole+1))
	require.Equal(t, want+4<<20/maxWhole, l.Memory.Used())
	err := list.ReserveHistory(e.ctx, 2<<20)
	require.True(t, apierrors.IsRequestEntityTooLargeError(err))
	require.ErrorContains(t, err, "limit its pages")
	require.NoError(t, list.ReserveHistory(e.ctx, 100<<10))
	require.Equal(t, want+4<<20/maxWhole+200<<10, l.Memory.Used())
	list.Close()
	e.Close()
	require.Zero(t, l.Memory.Used())
}

// While a list waits for memory after its selection, another one may have its slot.
func TestList_ReleasesItsSlotWhileItWaitsForMemory(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	holder := l.open(t, httptest.NewRecorder(), "holder")
	require.NoError(t, holder.Reserve(holder.ctx, 1<<20))
	e := l.open(t, httptest.NewRecorder(), "jane")
	list := e.List(e, encoding.MediaJSON, false)
	require.NoError(t, list.BeginSelection(e.ctx, LongList))
	form := encoding.Form{Resource: &api.Resource{}, Output: encoding.Output{Media: encoding.MediaJSON}}
	reserved := make(chan error)
	go func() {
		reserved <- list.ReserveItems(e.ctx, &form, []*storage.Object{{JSON: make([]byte, 100<<10)}})
	}()
	next := &slot{w: holder.Writer, needed: true}
	require.NoError(t, next.acquire(holder.ctx))
	next.release()
	holder.Close()
	require.NoError(t, <-reserved)
	list.EndSelection()
	list.Close()
}
