package snapshots_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/snapshots"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// shelf is a keeper with its store.
type shelf struct {
	t testing.TB
	*snapshots.Keeper
}

func newShelf(t testing.TB, o snapshots.Options) *shelf {
	t.Helper()
	if o.Version == "" {
		o.Version = "v1"
	}
	k := snapshots.New(o)
	k.Store = servertest.Store(t, servertest.Backend(t), storage.Options{})
	return &shelf{t, k}
}

// put writes a ConfigMap, or another document.
func (s *shelf) put(collection, namespace, name, uid string) {
	s.t.Helper()
	key := storage.Key{Collection: collection, Namespace: namespace, Name: name}
	_, err := s.Store.Commit(s.t.Context(), storage.Write{Key: key, Op: storage.Update, Expect: storage.AnyRevision,
		Value: []byte(`{"metadata":{"name":"` + name + `","uid":"` + uid + `"}}`)})
	require.NoError(s.t, err)
}

// paths returns the paths of all documents, with their uids.
func (s *shelf) paths() (all []string) {
	s.t.Helper()
	_, err := s.Store.Save(s.t.Context(), func(kv storage.KV) error {
		_, uid, _ := strings.Cut(string(kv.Value), `"uid":"`)
		all = append(all, kv.Path+"="+strings.Trim(uid, `"}`))
		return nil
	})
	require.NoError(s.t, err)
	return all
}

// refused requires an error for clients with a code and words.
func refused(t testing.TB, err error, code int32, words string) {
	t.Helper()
	status := apierrors.APIStatus(nil)
	require.True(t, errors.As(err, &status), "%v", err)
	require.Equal(t, code, status.Status().Code, "%v", err)
	require.ErrorContains(t, err, words)
}

func TestKeeper_RestoresTheObjectsOfASnapshot(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"files": filepath.Join(t.TempDir(), "snapshots"), "memory": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShelf(t, snapshots.Options{Dir: dir, Cluster: "here"})
			infos, err := s.List()
			require.NoError(t, err)
			require.Empty(t, infos)
			s.put("core/configmaps", "default", "a", "1")
			s.put("core/namespaces", "", "default", "2")
			s.put("coordination.k8s.io/leases", "default", "leader", "3")
			s.put("claims/apiservers", "", "old", "4")
			saved, err := s.Save(t.Context(), "prepared.v1")
			require.NoError(t, err)
			require.Equal(t, 4, saved.Objects)

			s.put("core/configmaps", "default", "a", "5")
			s.put("core/configmaps", "default", "b", "6")
			s.put("core/namespaces", "", "new", "7")
			s.put("coordination.k8s.io/leases", "default", "leader", "8")
			s.put("coordination.k8s.io/leases", "new", "leader", "9")
			s.put("claims/apiservers", "", "old", "10")
			for _, load := range []func(context.Context, string) (*snapshots.Info, error){s.Load, s.Reset} {
				loaded, err := load(t.Context(), "prepared.v1")
				require.NoError(t, err)
				require.Greater(t, loaded.Revision, saved.Revision)
				require.Equal(t, []string{"claims/apiservers/old=10", "coordination.k8s.io/leases/default/leader=8",
					"core/configmaps/default/a=1", "core/namespaces/default=2"}, s.paths())
			}
			infos, err = s.List()
			require.NoError(t, err)
			require.Equal(t, []snapshots.Info{*saved}, infos)
			deleted, err := s.Delete("prepared.v1")
			require.NoError(t, err)
			require.Equal(t, saved, deleted)
			_, err = s.Delete("prepared.v1")
			refused(t, err, http.StatusNotFound, "there is no snapshot prepared.v1")
		})
	}
}

func TestKeeper_RejectsNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newShelf(t, snapshots.Options{Dir: dir})
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a\\b", "A", "-a", "a..b", "a\x00", strings.Repeat("a", 101)} {
		_, err := s.Save(t.Context(), name)
		refused(t, err, http.StatusBadRequest, "is not a name of a snapshot")
		_, err = s.Load(t.Context(), name)
		refused(t, err, http.StatusBadRequest, "is not a name of a snapshot")
		_, err = s.Delete(name)
		refused(t, err, http.StatusBadRequest, "is not a name of a snapshot")
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	s.put("core/configmaps", "default", "a", "1")
	_, err = s.Save(t.Context(), "one")
	require.NoError(t, err)
	_, err = s.Load(t.Context(), "two")
	refused(t, err, http.StatusNotFound, "there is no snapshot two, but: one")
}

func TestKeeper_RejectsOtherVersionsAndClusters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newShelf(t, snapshots.Options{Dir: dir, Version: "v1", Cluster: "here"})
	s.put("core/configmaps", "default", "a", "1")
	_, err := s.Save(t.Context(), "one")
	require.NoError(t, err)
	newer := newShelf(t, snapshots.Options{Dir: dir, Version: "v2", Cluster: "here"})
	_, err = newer.Load(t.Context(), "one")
	refused(t, err, http.StatusConflict, "snapshot one is of version v1, and this server is v2")
	other := newShelf(t, snapshots.Options{Dir: dir, Version: "v1", Cluster: "there"})
	_, err = other.Reset(t.Context(), "one")
	refused(t, err, http.StatusConflict, "snapshot one is of another cluster")
	info, err := other.Load(t.Context(), "one")
	require.NoError(t, err)
	require.True(t, info.OtherCluster)
	require.Equal(t, s.paths(), other.paths())
	external := newShelf(t, snapshots.Options{Refusal: "the objects are elsewhere"})
	_, err = external.Save(t.Context(), "one")
	refused(t, err, http.StatusNotImplemented, "the objects are elsewhere")
	_, err = external.List()
	refused(t, err, http.StatusNotImplemented, "the objects are elsewhere")
}

// TestKeeper_RejectsDamagedFiles changes and shortens a file at every place.
func TestKeeper_RejectsDamagedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newShelf(t, snapshots.Options{Dir: dir})
	s.put("core/configmaps", "default", "a", "1")
	_, err := s.Save(t.Context(), "one")
	require.NoError(t, err)
	file := filepath.Join(dir, "one.snapshot")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	s.put("core/configmaps", "default", "b", "2")
	before := s.paths()
	check := func(damaged []byte) {
		require.NoError(t, os.WriteFile(file, damaged, 0o600))
		_, err := s.Load(t.Context(), "one")
		refused(t, err, http.StatusConflict, "snapshot one cannot be read")
		_, err = s.List()
		require.NoError(t, err)
	}
	for i := range content {
		check(content[:i])
		damaged := append([]byte{}, content...)
		damaged[i] ^= 1
		check(damaged)
	}
	require.Equal(t, before, s.paths())
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".saving-1"), nil, 0o600))
	_, err = s.Save(t.Context(), "one")
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(dir, ".saving-1"), "a crash left it")
}

// TestKeeper_DecryptsWithThePresentKeys: documents are saved as they are stored, and a document that cannot be
// decrypted ends the load before anything changes.
func TestKeeper_DecryptsWithThePresentKeys(t *testing.T) {
	t.Parallel()
	lost := false
	s := newShelf(t, snapshots.Options{Open: func(_ context.Context, kv *storage.KV) {
		if lost {
			kv.Value, kv.Err = nil, errors.New("no such key")
		}
	}})
	s.put("core/secrets", "default", "a", "1")
	_, err := s.Save(t.Context(), "one")
	require.NoError(t, err)
	s.put("core/secrets", "default", "a", "2")
	lost = true
	_, err = s.Load(t.Context(), "one")
	require.ErrorContains(t, err, "core/secrets/default/a cannot be decrypted: no such key")
	require.Equal(t, []string{"core/secrets/default/a=2"}, s.paths())
	lost = false
	_, err = s.Load(t.Context(), "one")
	require.NoError(t, err)
	require.Equal(t, []string{"core/secrets/default/a=1"}, s.paths())
}

// behind is a Hold of clients that see everything at the third look.
type behind struct {
	held  bool
	looks int
}

func (b *behind) Begin(context.Context) { b.held = true }

func (b *behind) Behind(int64) []string {
	if b.looks++; b.looks < 3 {
		return []string{"pods"}
	}
	return nil
}

func (b *behind) End() { b.held = false }

func TestKeeper_HoldsControllersUntilTheyHaveSeenTheObjects(t *testing.T) {
	t.Parallel()
	hold := &behind{}
	s := newShelf(t, snapshots.Options{Hold: hold})
	_, err := s.Save(t.Context(), "one")
	require.NoError(t, err)
	s.put("core/secrets", "default", "a", "1")
	_, err = s.Load(t.Context(), "one")
	require.NoError(t, err)
	require.Equal(t, &behind{looks: 3}, hold)
	require.Empty(t, s.paths())
}

func BenchmarkLoad(b *testing.B) {
	s := newShelf(b, snapshots.Options{Dir: b.TempDir()})
	for _, name := range []string{"empty", "full"} {
		_, err := s.Save(b.Context(), name)
		require.NoError(b, err)
		for i := range 1000 {
			s.put("core/configmaps", "default", "m"+time.Duration(i).String(), "1")
		}
	}
	for b.Loop() {
		for _, name := range []string{"empty", "full"} {
			_, err := s.Load(b.Context(), name)
			require.NoError(b, err)
		}
	}
}
