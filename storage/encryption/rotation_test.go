package encryption

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

// TestRotation_TwoServersOnOneEtcd performs the steps of a rotation that Kubernetes documents, one server after the
// other.
func TestRotation_TwoServersOnOneEtcd(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	below := startBelow(t)
	files := []string{configFile(t), configFile(t)}
	steps := []string{
		gcmKeys("one", key1),
		gcmKeys("one", key1, "two", key2), // the new key reads
		gcmKeys("two", key2, "one", key1), // the new key writes
		gcmKeys("two", key2),              // after all documents were rewritten, the old key is removed
	}
	var servers []*Backend
	var stores []*storage.Store
	var secrets []*storage.Collection
	for _, file := range files {
		configure(t, file, steps[0])
		b := open(t, below, Options{File: file, Reload: true})
		s, c := openStore(t, b)
		servers, stores, secrets = append(servers, b), append(stores, s), append(secrets, c)
	}
	_, err := stores[0].Commit(ctx, storage.Write{Op: storage.Create, Key: secretKey("old"), Value: secret("old")})
	require.NoError(t, err)
	for _, step := range steps[1:3] {
		for i, b := range servers {
			configure(t, files[i], step)
			require.True(t, b.reload(ctx))
			require.False(t, b.reload(ctx), "the file has not changed")
			for j, s := range stores {
				_, err := s.Commit(ctx, storage.Write{Op: storage.Update, Key: secretKey("new"), Value: secret("new"),
					Expect: storage.AnyRevision})
				require.NoError(t, err)
				for _, c := range secrets {
					got, err := c.Get(ctx, "default", "new", storage.At{})
					require.NoError(t, err, "server %d wrote", j)
					require.Contains(t, string(got.JSON), "c2VjcmV0")
				}
			}
		}
	}
	old, err := secrets[0].Get(ctx, "default", "old", storage.At{})
	require.NoError(t, err)
	stale, err := stores[0].Stale(ctx, old)
	require.NoError(t, err)
	require.True(t, stale)
	_, err = stores[0].Commit(ctx, storage.Write{Op: storage.Update, Key: old.Key, Value: old.Stored(),
		Expect: old.Revision})
	require.NoError(t, err)
	for i, b := range servers {
		configure(t, files[i], steps[3])
		require.True(t, b.reload(ctx))
	}
	third, _ := openStore(t, servers[0])
	list, err := third.Collection("core/secrets", storage.CollectionOptions{}).List(ctx, storage.ListRequest{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	require.Contains(t, string(get(t, below, secretKey("old")).Value), "k8s:enc:aesgcm:v1:two:")
}

func TestKeys_OfTheSameNameAreTriedInOrder(t *testing.T) {
	t.Parallel()
	below, file := startBelow(t), configFile(t)
	configure(t, file, gcmKeys("k", key1))
	put(t, open(t, below, Options{File: file}), secretKey("a"), secret("a"))
	configure(t, file, gcmKeys("k", key2)+gcmKeys("k", key1))
	kv := get(t, open(t, below, Options{File: file}), secretKey("a"))
	require.NoError(t, kv.Err)
	require.Equal(t, secret("a"), kv.Value)
	require.True(t, kv.Stale)
}

func TestKeys_ALostKeyIsAnErrorOfItsObjectsUntilItIsRestored(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	below, file := startBelow(t), configFile(t)
	configure(t, file, gcmKeys("lost", key1))
	put(t, open(t, below, Options{File: file}), secretKey("a"), secret("a"))
	configure(t, file, gcmKeys("lost", key2)) // a wrong key of the same name
	b := open(t, below, Options{File: file, Reload: true})
	s, secrets := openStore(t, b)
	put(t, b, secretKey("b"), secret("b"))
	_, err := secrets.Get(ctx, "default", "a", storage.At{})
	require.ErrorAs(t, err, new(*storage.Damaged))
	require.ErrorContains(t, err, "k8s:enc:aesgcm:v1:lost:")
	_, err = secrets.Get(ctx, "default", "b", storage.At{})
	require.NoError(t, err)
	w, err := secrets.Watch(ctx, storage.WatchRequest{From: s.Frontier()})
	require.NoError(t, err)
	defer w.Close()

	following, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Follow(following, func(ctx context.Context) { s.Repair(ctx) })
	}()
	configure(t, file, gcmKeys("lost", key2)+gcmKeys("lost", key1))
	events, err := w.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "a", events[0].Object.Key.Name)
	stop()
	<-ended
	_, err = secrets.List(ctx, storage.ListRequest{})
	require.NoError(t, err)
}

func TestIdentity_DecryptsIfFirstAndReadsPlainDocumentsIfLast(t *testing.T) {
	t.Parallel()
	below, file := startBelow(t), configFile(t)
	put(t, below, secretKey("before"), secret("before"))
	configure(t, file, gcmKeys("one", key1)+identity)
	b := open(t, below, Options{File: file})
	put(t, b, secretKey("after"), secret("after"))
	kv := get(t, b, secretKey("before"))
	require.Equal(t, secret("before"), kv.Value)
	require.True(t, kv.Stale, "it must be encrypted")

	configure(t, file, identity+gcmKeys("one", key1))
	b = open(t, below, Options{File: file})
	kv = get(t, b, secretKey("after"))
	require.Equal(t, secret("after"), kv.Value)
	require.True(t, kv.Stale, "it must be decrypted")
	require.False(t, get(t, b, secretKey("before")).Stale)

	configure(t, file, gcmKeys("one", key1))
	kv = get(t, open(t, below, Options{File: file}), secretKey("before"))
	require.ErrorContains(t, kv.Err, "an unencrypted document: no matching prefix found")
}

func TestReload_ARejectedFileHasNoEffect(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	below, file := startBelow(t), configFile(t)
	configure(t, file, gcmKeys("one", key1))
	b := open(t, below, Options{File: file, Reload: true, Server: "apiserver-1"})
	put(t, b, secretKey("a"), secret("a"))
	for _, bad := range []string{gcmKeys("one", "short"), "- typo: {}\n",
		"- kms: {apiVersion: v2, name: p, endpoint: \"unix:///none.sock\", timeout: 1s}\n"} {
		configure(t, file, bad)
		require.False(t, b.reload(ctx), bad)
		require.False(t, b.reload(ctx), bad)
		require.Equal(t, secret("a"), get(t, b, secretKey("a")).Value)
	}
	families, err := b.Metrics.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			counted[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	require.EqualValues(t, 3, counted["apiserver_encryption_config_controller_automatic_reloads_total"])
	require.Positive(t, counted["apiserver_storage_transformation_operations_total"])
	checks := b.Checks()
	require.Len(t, checks, 1)
	require.Equal(t, "kms-providers", checks[0].Name)
	require.NoError(t, checks[0].Run(ctx), "there is no plugin")
}
