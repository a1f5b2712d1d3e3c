package encoding

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/storage"
)

const gizmos = `{"metadata":{"name":"gizmos.example.com","uid":"u"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gizmos","kind":"Gizmo"},
 "conversion":{"strategy":"Webhook"},
 "versions":[{"name":"v1","served":true,"storage":true},{"name":"v2","served":true}],
 "preserveUnknownFields":true},
"status":{"acceptedNames":{"plural":"gizmos","singular":"gizmo","kind":"Gizmo","listKind":"GizmoList"},
 "conditions":[{"type":"Established","status":"True"}]}}`

// converterFunc converts the objects of each request one by one.
type converterFunc func(ctx context.Context, objs []*customresource.Object) error

func (f converterFunc) Convert(ctx context.Context, objs []*customresource.Object, to *customresource.Version) (
	[]*customresource.Object, error) {
	if err := f(ctx, objs); err != nil {
		return nil, err
	}
	converted := make([]*customresource.Object, len(objs))
	for i, o := range objs {
		converted[i] = to.Object(o.Kind, o.ObjectMeta, map[string]any{"was": o.APIVersion})
	}
	return converted, nil
}

// gizmo returns a version of a kind that another server converts.
func gizmo(t testing.TB, f converterFunc) *api.Resource {
	t.Helper()
	definition, err := customresource.Read([]byte(gizmos))
	require.NoError(t, err)
	definition.Converter = f
	served, _ := definition.Kinds(nil)
	require.True(t, served[1].WebhookConverted)
	return served[1]
}

func gizmoDocuments(t testing.TB, n int) []*storage.Object {
	t.Helper()
	docs := make([]*storage.Object, n)
	for i := range docs {
		name := fmt.Sprint("g", i)
		var err error
		docs[i], err = storage.NewObject(storage.Key{Namespace: "a", Name: name}, int64(i+1), fmt.Appendf(nil,
			`{"apiVersion":"example.com/v1","kind":"Gizmo","metadata":{"name":%q,"namespace":"a","generation":1}}`, name))
		require.NoError(t, err)
	}
	return docs
}

func TestConversions_AreCached(t *testing.T) {
	t.Parallel()
	converted := 0
	res := gizmo(t, func(_ context.Context, objs []*customresource.Object) error {
		converted += len(objs)
		return nil
	})
	now := time.Now()
	c := newConversions(1<<20, func() time.Time { return now })
	docs := gizmoDocuments(t, 3)
	read := func(items ...*storage.Object) {
		t.Helper()
		got, err := c.documents(t.Context(), res, items)
		require.NoError(t, err)
		for i, o := range got {
			require.Equal(t, items[i].Key, o.Key)
			require.JSONEq(t, fmt.Sprintf(`{"apiVersion":"example.com/v2","kind":"Gizmo","was":"example.com/v1",
				"metadata":{"name":%q,"namespace":"a","generation":1,"resourceVersion":"%d"}}`, o.Key.Name, o.Revision),
				string(o.JSON))
		}
	}
	read(docs[:2]...)
	require.Equal(t, 2, converted)
	read(docs...)
	require.Equal(t, 3, converted)
	read(docs[0], docs[0])
	require.Equal(t, 3, converted)
	now = now.Add(convertedFor)
	read(docs...)
	require.Equal(t, 6, converted, "the other server may have changed")
	require.Len(t, c.known, 3)
	read(docs[1], docs[1], docs[1])
	require.Equal(t, 6, converted)
	now = now.Add(convertedFor)
	c.sweepUp()
	require.Empty(t, c.known, "nothing is kept for nobody")
	require.Zero(t, c.size)
	read(docs...)

	other := gizmo(t, func(context.Context, []*customresource.Object) error { return errors.New("changed") })
	_, err := c.documents(t.Context(), other, docs)
	require.ErrorContains(t, err, "changed", "a definition that has changed begins anew")
	require.Len(t, c.known, 3)
}

func TestConversions_AreLimited(t *testing.T) {
	t.Parallel()
	var most atomic.Int64
	res := gizmo(t, func(_ context.Context, objs []*customresource.Object) error {
		most.Store(max(most.Load(), int64(len(objs))))
		return nil
	})
	docs := gizmoDocuments(t, 3*batchDocuments)
	c := newConversions(10_000, time.Now)
	got, err := c.documents(t.Context(), res, docs)
	require.NoError(t, err)
	require.Len(t, got, len(docs))
	require.EqualValues(t, batchDocuments, most.Load())
	size := 0
	for _, e := range c.known {
		size += len(e.doc.JSON)
	}
	require.Equal(t, c.size, size)
	require.Equal(t, c.kept.Len(), len(c.known))
	require.LessOrEqual(t, size, 10_000)
	require.Greater(t, size, 9_000)
}

// One of several concurrent readers makes the request, and the others wait. If its context ends, another one makes
// it.
func TestConversions_AreShared(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	began, release := make(chan struct{}), make(chan struct{})
	res := gizmo(t, func(ctx context.Context, _ []*customresource.Object) error {
		if asked.Add(1) == 1 {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		}
		<-release
		return nil
	})
	c := newConversions(1<<20, time.Now)
	docs := gizmoDocuments(t, 2)
	first, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	readers.Go(func() {
		_, err := c.documents(first, res, docs)
		require.ErrorIs(t, err, context.Canceled)
	})
	<-began
	for i := range 50 {
		readers.Go(func() {
			got, err := c.documents(t.Context(), res, docs[i%2:])
			require.NoError(t, err)
			require.Contains(t, string(got[0].JSON), "example.com/v2")
		})
	}
	impatient, leave := context.WithCancel(t.Context())
	leave()
	_, err := c.documents(impatient, res, docs)
	require.ErrorIs(t, err, context.Canceled)
	cancel()
	close(release)
	readers.Wait()
	require.LessOrEqual(t, asked.Load(), int64(3), "one for each document, after the first")
}

// An error is returned to all waiting readers, and is not cached.
func TestConversions_DoNotCacheFailures(t *testing.T) {
	t.Parallel()
	fails := true
	res := gizmo(t, func(context.Context, []*customresource.Object) error {
		if fails {
			return errors.New("not now")
		}
		return nil
	})
	c := newConversions(1<<20, time.Now)
	docs := gizmoDocuments(t, 1)
	_, err := c.documents(t.Context(), res, docs)
	require.ErrorContains(t, err, "not now")
	require.Empty(t, c.known)
	fails = false
	_, err = c.documents(t.Context(), res, docs)
	require.NoError(t, err)

	require.Panics(t, func() {
		_, _ = c.documents(t.Context(), gizmo(t, func(context.Context, []*customresource.Object) error { panic("odd") }), docs)
	})
	require.Len(t, c.known, 1, "nobody waits for a conversion that has panicked")
}

// A document that cannot be converted is an error only for its readers, not for others that wait for the same
// request.
func TestConversions_FailOnlyForTheirReaders(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	res := gizmo(t, func(_ context.Context, objs []*customresource.Object) error {
		if calls.Add(1) == 1 {
			close(began)
			<-release
		}
		for _, o := range objs {
			if o.Name == "g1" {
				return errors.New("g1 is odd")
			}
		}
		return nil
	})
	c := newConversions(1<<20, time.Now)
	docs := gizmoDocuments(t, 2)
	var readers sync.WaitGroup
	read := func(items []*storage.Object, want string) {
		readers.Go(func() {
			_, err := c.documents(t.Context(), res, items)
			if want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, want)
		})
	}
	read(docs, "g1 is odd")
	<-began
	for range 5 {
		read(docs, "g1 is odd")
		read(docs[:1], "")
	}
	close(release)
	readers.Wait()
}

func TestConversions_FromARemovedVersionFail(t *testing.T) {
	t.Parallel()
	res := gizmo(t, func(context.Context, []*customresource.Object) error { return nil })
	odd, err := storage.NewObject(storage.Key{Name: "odd"}, 1,
		[]byte(`{"apiVersion":"example.com/v0","kind":"Gizmo","metadata":{"name":"odd"}}`))
	require.NoError(t, err)
	_, err = ConvertDocument(t.Context(), res, odd)
	require.ErrorContains(t, err, "request to convert CR from an invalid group/version: example.com/v0")
}
