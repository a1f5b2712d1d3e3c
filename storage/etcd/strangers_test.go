package etcd

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

// Other programs may keep data in the same etcd: beside the prefix and, by mistake, below it. strangers
// are such keys, and values that no object has.
func strangers() map[string]string {
	keys := map[string]string{
		"/registry/core/pods/default/a": "another prefix, though the path is that of an object",
		"/test":                         "beside the prefix",
		"/testing/core/pods/default/a":  `{"metadata":{}}`,
		"/test/":                        "",
		"/test/x":                       "x",
		"/test//":                       "{}",
		"/test/core/pods/":              "{}",
		"/test/core/pods/default/":      "{}",
		"/test/core/pods//a":            "{}",
		"/test/core/pods/a/b/c":         "{}",
		"/test/\xff\xfe/\x00/a":         "{}",
	}
	for i, value := range []string{"", "k8s\x00\n\x0b", "[]", "42", `"text"`, "null", "{", `{"metadata":5}`,
		"{}{}", "\xff\xfe"} {
		keys[fmt.Sprintf("/test/core/pods/default/garbage-%d", i)] = value
	}
	return keys
}

func TestStrangers_DoNotDisturbSeveralServers(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := startEtcd(t)
	backends := []storage.Backend{server.dial(), server.dial()}
	client := backends[0].(*backend).client
	put := func(key, value string) {
		_, err := client.Put(ctx, key, value)
		require.NoError(t, err)
	}
	keys := strangers()
	for key, value := range keys {
		put(key, value)
	}
	one, two := openStore(t, backends[0], storage.Options{}), openStore(t, backends[1], storage.Options{})
	collections := []*storage.Collection{one.Collection(podsName, podOptions), two.Collection(podsName, podOptions)}
	var watchers []*storage.Watcher
	for _, c := range collections {
		watchers = append(watchers, watch(t, c))
	}
	var want []string
	a := create(t, one, podKey("default", "a"), pod("default", "a", ""))
	want = append(want, added(a))
	for _, key := range slices.Sorted(maps.Keys(keys)) { // written again, and taken away, under the servers' eyes
		put(key, keys[key])
		_, err := client.Delete(ctx, key)
		require.NoError(t, err)
		put(key, keys[key])
	}
	b := create(t, two, podKey("default", "b"), pod("default", "b", ""))
	want = append(want, added(b))

	// An object that a stranger overwrites does not exist for readers until it is whole again.
	path := "/test/" + a.Key.String()
	put(path, "garbage")
	deleted, err := one.Revision(ctx)
	require.NoError(t, err)
	put(path, string(pod("default", "a", "")))
	whole, err := one.Revision(ctx)
	require.NoError(t, err)
	want = append(want, fmt.Sprintf("DELETED default/a %d", deleted), fmt.Sprintf("ADDED default/a %d", whole))

	for i, c := range collections {
		require.Equal(t, want, briefs(take(t, watchers[i], len(want))))
		list, err := c.List(ctx, storage.ListRequest{})
		require.NoError(t, err)
		require.Equal(t, []string{"default/a", "default/b"}, names(list.Items))
		require.Equal(t, whole, list.Revision)
		past, err := c.List(ctx, storage.ListRequest{At: storage.At{Revision: b.Revision, Exact: true}, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, []string{"default/a"}, names(past.Items))
	}
	third := openStore(t, server.dial(), storage.Options{}).Collection(podsName, podOptions)
	page, err := third.List(ctx, storage.ListRequest{At: storage.At{Revision: b.Revision, Exact: true}}) // from etcd
	require.NoError(t, err)
	require.Equal(t, []string{"default/a", "default/b"}, names(page.Items))
}
