package storage

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// fillPods creates pods in the order of their keys in etcd: "a-b/" comes before "a/".
func fillPods(t testing.TB, s *Store) []string {
	t.Helper()
	var keys []string
	for _, namespace := range []string{"a-b", "a", "a0", "b"} {
		for i := range 5 {
			name := fmt.Sprintf("p%d", i)
			create(t, s, podKey(namespace, name), pod(namespace, name, fmt.Sprintf("n%d", i%2), fmt.Sprintf("i=%d", i)))
			keys = append(keys, namespace+"/"+name)
		}
	}
	return keys
}

func TestList_PagesInKeyOrderFromMemoryAndFromEtcd(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	pods := s.Collection(podsName, podOptions)
	keys := fillPods(t, s)
	stranger := openStore(t, b, Options{}) // has never served a page
	for i := range 3 {                     // moves on, so that the stranger must ask etcd
		create(t, s, podKey("a", fmt.Sprintf("late%d", i)), pod("a", "late", ""))
	}
	for name, server := range map[string]*Collection{"memory": pods,
		"etcd": stranger.Collection(podsName, podOptions)} {
		first, err := pods.List(ctx, ListRequest{Limit: 3})
		require.NoError(t, err)
		request := ListRequest{Limit: 3, Continue: first.Continue}
		create(t, s, podKey("zz", "after-"+name), pod("zz", "after", ""))
		_, err = stranger.Revision(ctx)
		require.NoError(t, err)
		all := names(first.Items)
		remaining := *first.Remaining
		for request.Continue != "" {
			page, err := server.List(ctx, request)
			require.NoError(t, err)
			require.Equal(t, first.Revision, page.Revision)
			all = append(all, names(page.Items)...)
			remaining -= int64(len(page.Items))
			if page.Remaining == nil {
				require.Zero(t, remaining)
				require.Empty(t, page.Continue)
			} else {
				require.Equal(t, remaining, *page.Remaining)
			}
			request.Continue = page.Continue
		}
		want, err := pods.List(ctx, ListRequest{At: At{Revision: first.Revision, Exact: true}})
		require.NoError(t, err)
		require.Equal(t, names(want.Items), all, name)
		require.Subset(t, all, keys)
	}
}

func TestList_Scopes(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	fillPods(t, s)
	match := func(o *Object) bool { return o.Labels.Get("i") > "2" }
	for name, c := range map[string]struct {
		scope Scope
		want  []string
	}{
		"namespace":          {Scope{Namespace: "a"}, []string{"a/p0", "a/p1", "a/p2", "a/p3", "a/p4"}},
		"name":               {Scope{Name: "p1"}, []string{"a-b/p1", "a/p1", "a0/p1", "b/p1"}},
		"namespace and name": {Scope{Namespace: "b", Name: "p1"}, []string{"b/p1"}},
		"index": {Scope{IndexValue: "n1"}, []string{"a-b/p1", "a-b/p3", "a/p1", "a/p3", "a0/p1", "a0/p3",
			"b/p1", "b/p3"}},
		"index and namespace": {Scope{IndexValue: "n1", Namespace: "a0"}, []string{"a0/p1", "a0/p3"}},
		"match":               {Scope{Match: match, Namespace: "a"}, []string{"a/p3", "a/p4"}},
		"nothing":             {Scope{Namespace: "none"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := pods.List(ctx, ListRequest{Scope: c.scope})
			require.NoError(t, err)
			require.ElementsMatch(t, c.want, names(list.Items))
			require.IsIncreasing(t, append([]string{""}, paths(list.Items)...))
			old, err := pods.pageFromEtcd(ctx, ListRequest{Scope: c.scope}, list.Revision, place{})
			require.NoError(t, err)
			require.Equal(t, names(list.Items), names(old.Items), "etcd and memory agree")
			var paged []string
			for request := (ListRequest{Scope: c.scope, Limit: 1}); ; {
				page, err := pods.List(ctx, request)
				require.NoError(t, err)
				paged = append(paged, names(page.Items)...)
				if request.Continue = page.Continue; request.Continue == "" {
					break
				}
			}
			require.ElementsMatch(t, c.want, paged)
		})
	}
}

func paths(objects []*Object) []string {
	list := make([]string, len(objects))
	for i, o := range objects {
		list[i] = o.Key.String()
	}
	return list
}

func TestList_RevisionMatches(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	pods := s.Collection(podsName, podOptions)
	a := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	c := create(t, s, podKey("default", "c"), pod("default", "c", ""))

	exact, err := pods.List(ctx, ListRequest{At: At{Revision: a.Revision, Exact: true}})
	require.NoError(t, err)
	require.Equal(t, []string{"default/a"}, names(exact.Items))
	require.Equal(t, a.Revision, exact.Revision)
	_, err = pods.Get(ctx, "default", "c", At{Revision: a.Revision, Exact: true})
	require.ErrorIs(t, err, ErrNotFound)
	got, err := pods.Get(ctx, "default", "a", At{Revision: a.Revision, Exact: true})
	require.NoError(t, err)
	require.Equal(t, a, got)

	newer, err := pods.List(ctx, ListRequest{At: At{Revision: c.Revision}})
	require.NoError(t, err)
	require.GreaterOrEqual(t, newer.Revision, c.Revision)
	require.Len(t, newer.Items, 2)

	_, err = pods.List(ctx, ListRequest{At: At{Revision: c.Revision + 1000}})
	require.ErrorIs(t, err, ErrFuture)

	require.NoError(t, b.Compact(ctx, c.Revision))
	_, err = pods.List(ctx, ListRequest{At: At{Revision: a.Revision, Exact: true}})
	require.ErrorIs(t, err, ErrExpired)
	for _, token := range []string{"x", "e30", "!!", tokenAfter(0, a.Key), tokenAfter(-2, a.Key)} {
		_, err = pods.List(ctx, ListRequest{Continue: token})
		require.ErrorIs(t, err, ErrBadToken, token)
	}
	anyTime, err := pods.List(ctx, ListRequest{At: At{Any: true}})
	require.NoError(t, err)
	require.Len(t, anyTime.Items, 2)
}

func tokenAfter(revision int64, last Key) string {
	return continueToken{Revision: revision, place: place{Start: last.Namespace + "/" + last.Name + "\x00"}}.String()
}

// After the revision of a list was compacted between two pages, a client may continue at the current revision.
func TestList_StaleTokenHasATokenToContinueWith(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	for i := range 6 {
		create(t, s, podKey("a", fmt.Sprintf("p%d", i)), pod("a", "p", ""))
	}
	pods := s.Collection(podsName, podOptions)
	first, err := pods.List(ctx, ListRequest{Limit: 2, Scope: Scope{Namespace: "a"}})
	require.NoError(t, err)
	last := create(t, s, podKey("a", "p31"), pod("a", "p31", ""))
	require.NoError(t, b.Compact(ctx, last.Revision))
	other := openStore(t, b, Options{}).Collection(podsName, podOptions) // has kept no snapshot
	_, err = other.List(ctx, ListRequest{Limit: 2, Continue: first.Continue, Scope: Scope{Namespace: "a"}})
	require.ErrorIs(t, err, ErrExpired)
	var stale *StaleToken
	require.ErrorAs(t, err, &stale)

	next, err := other.List(ctx, ListRequest{Limit: 2, Continue: stale.Continue, Scope: Scope{Namespace: "a"}})
	require.NoError(t, err)
	require.Equal(t, []string{"a/p2", "a/p3"}, names(next.Items))
	require.Equal(t, last.Revision, next.Revision)
	require.EqualValues(t, 2, *next.Remaining, "an estimate: as many as there were in the state that is gone")
	create(t, s, podKey("a", "p9"), pod("a", "p9", ""))
	rest, err := other.List(ctx, ListRequest{Continue: next.Continue, Scope: Scope{Namespace: "a"}})
	require.NoError(t, err)
	require.Equal(t, []string{"a/p31", "a/p4", "a/p5"}, names(rest.Items), "from here on it is one state again")
	require.Equal(t, next.Revision, rest.Revision)
}

// FuzzContinueToken: any text is a place to continue from or ErrBadToken, and a token that is parsed
// and written again means the same.
func FuzzContinueToken(f *testing.F) {
	f.Add(tokenAfter(7, podKey("default", "a")))
	f.Add(continueToken{Revision: newest, place: place{Start: "a\x00", Rest: 12}}.String())
	f.Add("eyJydiI6MSwic3RhcnQiOiIvLi4ifQ")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := parseToken(text)
		if err != nil {
			require.ErrorIs(t, err, ErrBadToken)
			return
		}
		require.True(t, token.Revision > 0 || token.Revision == newest)
		again, err := parseToken(token.String())
		require.NoError(t, err)
		require.Equal(t, token, again)
	})
}

// BenchmarkListInPages shows whether a page costs more where more pages follow.
func BenchmarkListInPages(b *testing.B) {
	for _, n := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprintf("objects=%d", n), func(b *testing.B) {
			s, pods := startPods(b, Options{})
			fillTypical(b, s, n)
			for b.Loop() {
				r := ListRequest{Limit: 500, Scope: Scope{Namespace: "default"}}
				for {
					list, err := pods.List(b.Context(), r)
					if err != nil {
						b.Fatal(err)
					}
					if r.Continue = list.Continue; r.Continue == "" {
						break
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/object")
		})
	}
}

func TestCollection_RescansWhenOpenedWithOtherFields(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s := openStore(t, startBackend(t), Options{})
	create(t, s, podKey("default", "a"), pod("default", "a", "n1"))
	require.Equal(t, []string{podsName}, waitCollections(t, s))
	plain := s.Collection(podsName, CollectionOptions{})
	w := watch(t, plain, WatchRequest{From: s.Frontier() - 1})
	pods := s.Collection(podsName, podOptions)
	require.Same(t, plain, pods)
	list, err := pods.List(ctx, ListRequest{Scope: Scope{IndexValue: "n1"}})
	require.NoError(t, err)
	require.Equal(t, []string{"default/a"}, names(list.Items))
	require.Equal(t, []string{"n1", ""}, take(t, w, 1)[0].Object.Fields)
}

func waitCollections(t *testing.T, s *Store) []string {
	t.Helper()
	_, err := s.Revision(testContext(t))
	require.NoError(t, err)
	return s.Collections()
}

func BenchmarkList10k(b *testing.B) {
	s, pods := startPods(b, Options{})
	fillTypical(b, s, 10000)
	b.ReportAllocs()
	for b.Loop() {
		list, err := pods.List(b.Context(), ListRequest{})
		if err != nil || len(list.Items) != 10000 {
			b.Fatal(len(list.Items), err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s, pods := startPods(b, Options{})
	fillTypical(b, s, 1000)
	for name, at := range map[string]At{"consistent": {}, "any": {Any: true}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := pods.Get(b.Context(), "default", "p500", at); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func fillTypical(b *testing.B, s *Store, n int) {
	b.Helper()
	for i := 0; i < n; i += 100 {
		writes := make([]Write, 100)
		for j := range writes {
			writes[j] = Write{Op: Create, Key: podKey("default", fmt.Sprintf("p%d", i+j)), Value: typicalPod}
		}
		if _, err := s.Commit(b.Context(), writes...); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := s.Revision(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// The index has no history, but all pages of a list by index value have one revision.
func TestList_PagesOfAnIndexValueAreOfOneRevision(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	var objects []*Object
	for i := range 6 {
		name := fmt.Sprintf("p%d", i)
		objects = append(objects, create(t, s, podKey("default", name), pod("default", name, "n1")))
	}
	request := ListRequest{Scope: Scope{IndexValue: "n1"}, Limit: 2}
	page, err := pods.List(ctx, request)
	require.NoError(t, err)
	require.Equal(t, objects[:2], page.Items)
	require.Nil(t, page.Remaining, "it is not known how many of a selection follow")
	request.Continue = page.Continue
	page, err = pods.List(ctx, request)
	require.NoError(t, err)
	require.Equal(t, objects[2:4], page.Items)

	remove(t, s, objects[4])
	_, err = s.Revision(ctx)
	require.NoError(t, err)
	request.Continue = page.Continue
	page, err = pods.List(ctx, request)
	require.NoError(t, err)
	require.Equal(t, objects[4:], page.Items)
	require.Empty(t, page.Continue)
	page, err = pods.List(ctx, ListRequest{Scope: request.Scope, Limit: 5})
	require.NoError(t, err)
	require.Len(t, page.Items, 5)
	require.Nil(t, page.Remaining)
}

// BenchmarkListOfOneNode lists one node's pods of 5,000 in pages, as a kubelet does.
func BenchmarkListOfOneNode(b *testing.B) {
	for _, limit := range []int64{0, 500, 5} {
		b.Run(fmt.Sprintf("limit=%d", limit), func(b *testing.B) {
			s, pods := startPods(b, Options{})
			for i := range 5000 {
				name := fmt.Sprintf("p%d", i)
				create(b, s, podKey("default", name), pod("default", name, fmt.Sprintf("n%d", i%500)))
			}
			_, err := s.Revision(b.Context())
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := pods.List(b.Context(), ListRequest{Scope: Scope{IndexValue: "n7"}, At: At{Any: true},
					Limit: limit}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
