package storage

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Objects, also unreadable ones, come and go at random. Meanwhile a first page reports the number of items that
// follow in its namespace: now, in a past state, and on a server that has just started.
func TestList_FirstPageReportsTheRemainingItems(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	l, s, put := startLocked(t)
	pods := s.Collection(podsName, podOptions)
	random := rand.New(rand.NewPCG(1, 2))
	type state struct {
		revision int64
		objects  map[string]int
	}
	var states []state
	check := func(pods *Collection, want state, at At) {
		t.Helper()
		for _, namespace := range []string{"a", "a-b", "b"} {
			page, err := pods.List(ctx, ListRequest{Scope: Scope{Namespace: namespace}, Limit: 2, At: at,
				Readable: true})
			require.NoError(t, err)
			following := max(0, want.objects[namespace]-2)
			require.Len(t, page.Items, want.objects[namespace]-following)
			if following == 0 {
				require.Nil(t, page.Remaining)
				continue
			}
			require.EqualValues(t, following, *page.Remaining)
		}
	}
	for step := range 400 {
		l.key.Store(step/40%2 == 1)
		namespace := []string{"a", "a-b", "b"}[random.IntN(3)]
		key := podKey(namespace, fmt.Sprintf("p%d", random.IntN(8)))
		switch old := pods.get(key.Namespace, key.Name); random.IntN(4) {
		case 0:
			put(key, lock+string(pod(key.Namespace, key.Name, "")))
		case 1, 2:
			put(key, string(pod(key.Namespace, key.Name, "")))
		default:
			if old != nil {
				remove(t, s, old)
			}
		}
		revision, err := s.Revision(ctx)
		require.NoError(t, err)
		now := state{revision: revision, objects: map[string]int{}}
		for _, o := range pods.snapshot().all() {
			now.objects[o.Key.Namespace]++
		}
		for namespace, n := range now.objects {
			require.Equal(t, n, pods.CountIn(namespace))
		}
		check(pods, now, At{})
		states = append(states, now)
	}
	require.Len(t, states, 400)
	for _, kept := range pods.keptSnapshots.list {
		for _, then := range states {
			if kept.first <= then.revision && then.revision <= kept.last {
				check(pods, then, At{Revision: then.revision, Exact: true})
			}
		}
	}
	fresh := openStore(t, l, Options{}).Collection(podsName, podOptions)
	for _, namespace := range []string{"a", "a-b", "b"} {
		list, err := fresh.List(ctx, ListRequest{Scope: Scope{Namespace: namespace}, Readable: true})
		require.NoError(t, err)
		require.Equal(t, len(list.Items), fresh.CountIn(namespace))
	}
	require.Zero(t, fresh.CountIn("none"))
	require.Equal(t, fresh.tree.Len(), fresh.CountIn(""))
}

func TestVisits_BoundsTheObjectsThatAListVisits(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	fillPods(t, s) // 5 in each of 4 namespaces; 2 of the 5 are on node n1
	_, err := s.Revision(testContext(t))
	require.NoError(t, err)
	match := func(*Object) bool { return true }
	for name, c := range map[string]struct {
		request ListRequest
		want    int
	}{
		"all":                     {ListRequest{}, 20},
		"a page":                  {ListRequest{Limit: 3}, 3},
		"a namespace":             {ListRequest{Scope: Scope{Namespace: "a"}}, 5},
		"a page of a namespace":   {ListRequest{Scope: Scope{Namespace: "a"}, Limit: 3}, 3},
		"no namespace":            {ListRequest{Scope: Scope{Namespace: "none"}}, 0},
		"one object":              {ListRequest{Scope: Scope{Namespace: "a", Name: "p1"}}, 1},
		"a name in any namespace": {ListRequest{Scope: Scope{Name: "p1"}, Limit: 3}, 20},
		"labels":                  {ListRequest{Scope: Scope{Namespace: "a", Match: match}, Limit: 3}, 5},
		"a node":                  {ListRequest{Scope: Scope{IndexValue: "n1"}}, 8},
		"a page of a node":        {ListRequest{Scope: Scope{IndexValue: "n1"}, Limit: 3}, 20},
		"no node":                 {ListRequest{Scope: Scope{IndexValue: "n7"}}, 0},
		"the past of a namespace": {ListRequest{Scope: Scope{Namespace: "a"}, At: At{Revision: 1, Exact: true}}, 20},
		"a page of the past": {ListRequest{Scope: Scope{Namespace: "a"}, Limit: 3,
			At: At{Revision: 1, Exact: true}}, 3},
		"a page that follows": {ListRequest{Continue: "x", Limit: 3}, 3},
	} {
		require.Equal(t, c.want, pods.Visits(&c.request), name)
	}
}

// BenchmarkListFirstPage lists the first page of a namespace that has many more objects.
func BenchmarkListFirstPage(b *testing.B) {
	for _, n := range []int{1000, 50000} {
		b.Run(fmt.Sprintf("objects=%d", n), func(b *testing.B) {
			s, pods := startPods(b, Options{})
			fillTypical(b, s, n)
			b.ReportAllocs()
			for b.Loop() {
				page, err := pods.List(b.Context(), ListRequest{Scope: Scope{Namespace: "default"}, Limit: 10,
					At: At{Any: true}})
				if err != nil || *page.Remaining != int64(n-10) {
					b.Fatal(page, err)
				}
			}
		})
	}
}
