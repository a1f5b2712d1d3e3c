package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/cluster"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// objects reads and writes the objects of a store without a server.
type objects struct {
	loopback.Client // for the methods that are not called
	store           *storage.Store
}

func (o objects) Collection(res *api.Resource) *storage.Collection {
	return o.store.Collection(res.Collection(), storage.CollectionOptions{Fields: res.SelectablePaths(),
		Index: res.FieldIndex})
}

func (o objects) Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error) {
	return o.store.Commit(ctx, writes...)
}

func (o objects) Create(res *api.Resource, obj api.Object) (storage.Write, error) {
	obj.SetUID(types.UID("uid-of-" + obj.GetName()))
	doc, err := encoding.Encode(res, obj)
	return storage.Write{Op: storage.Create, Key: storage.Key{Collection: res.Collection(),
		Namespace: obj.GetNamespace(), Name: obj.GetName()}, Value: doc}, err
}

func (o objects) Update(_ context.Context, res *api.Resource, stored *storage.Object, _ string,
	change func(api.Object)) ([]storage.Write, error) {
	obj, err := encoding.Decode(context.Background(), res, stored)
	if err != nil {
		return nil, err
	}
	change(obj)
	doc, err := encoding.Encode(res, obj)
	return []storage.Write{{Op: storage.Update, Key: stored.Key, Value: doc, Expect: stored.Revision}}, err
}

// view is a Cluster, and a second store on the same etcd. A test writes to the second store, and the Cluster's memory
// lacks the object for a moment.
type view struct {
	*cluster.Cluster
	t        *testing.T
	registry *api.Registry
	other    *storage.Store
}

func newView(t *testing.T) *view {
	t.Helper()
	backend := servertest.Backend(t)
	v := &view{t: t, registry: api.NewRegistry(builtin.Kinds()...),
		other: servertest.Store(t, backend, storage.Options{})}
	store := servertest.Store(t, backend, storage.Options{})
	v.Cluster = cluster.New(cluster.Options{Store: store, Registry: v.registry, Objects: objects{store: store},
		Authorizer: authz.AlwaysAllow{}, Log: slog.New(slog.DiscardHandler)})
	return v
}

// create stores an object.
func (v *view) create(obj api.Object, kind schema.GroupVersionKind) {
	v.t.Helper()
	w, err := objects{store: v.other}.Create(v.registry.Snapshot().Kind(kind), obj)
	require.NoError(v.t, err)
	_, err = v.other.Commit(v.t.Context(), w)
	require.NoError(v.t, err)
}

var (
	secretKind = corev1.SchemeGroupVersion.WithKind("Secret")
	secrets    = schema.GroupResource{Resource: "secrets"}
)

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func TestGet_ReadsObjectsThatMemoryLacksAndDecodesThemOnce(t *testing.T) {
	t.Parallel()
	v := newView(t)
	for _, name := range []string{"a", "b", "c"} {
		v.create(secret(name), secretKind)
		obj, err := v.Get(t.Context(), secrets, "default", name)
		require.NoError(t, err, "as soon as it is written")
		again, err := v.Get(t.Context(), secrets, "default", name)
		require.NoError(t, err)
		require.Same(t, obj, again)
		fresh, err := v.Newest(t.Context(), secretKind, "default", name)
		require.NoError(t, err)
		require.NotSame(t, obj, fresh)
	}
	all, err := v.List(t.Context(), secrets, "default", true)
	require.NoError(t, err)
	require.Len(t, all, 3)

	_, err = v.Get(t.Context(), secrets, "default", "none")
	require.ErrorIs(t, err, admission.ErrNotFound)
	_, err = v.Newest(t.Context(), secretKind, "default", "none")
	require.EqualError(t, err, `secrets "none" not found`)
	_, err = v.Get(t.Context(), schema.GroupResource{Resource: "ships"}, "default", "a")
	require.ErrorIs(t, err, admission.ErrNotFound)
	_, err = v.Newest(t.Context(), schema.GroupVersionKind{Version: "v1", Kind: "Ship"}, "default", "a")
	require.True(t, apierrors.IsNotFound(err))
	require.EqualError(t, err, "the server could not find the requested resource")
}

func TestAwait_WaitsForAnObject(t *testing.T) {
	t.Parallel()
	v := newView(t)
	found := make(chan error, 1)
	go func() {
		_, err := v.Await(t.Context(), secrets, "default", "late")
		for errors.Is(err, admission.ErrNotFound) { // it waits for a second, and the machine may be busy
			_, err = v.Await(t.Context(), secrets, "default", "late")
		}
		found <- err
	}()
	v.create(secret("late"), secretKind)
	require.NoError(t, <-found)
	_, err := v.Await(t.Context(), secrets, "default", "never")
	require.ErrorIs(t, err, admission.ErrNotFound)
}

func TestRBAC_FollowsTheStore(t *testing.T) {
	t.Parallel()
	v := newView(t)
	index, err := v.RBAC(t.Context())
	require.NoError(t, err)
	access := &authz.Confirmed{Rights: authz.Union{index}, Memory: v.Store}
	jane := &authn.User{Name: "jane", Groups: []string{authn.GroupAuthenticated}}
	may := func() authz.Decision {
		decision, _, err := access.Authorize(t.Context(), &authz.Attributes{User: jane, Verb: "get", Version: "v1",
			Resource: "pods", Namespace: "default"})
		require.NoError(t, err)
		return decision
	}
	require.Equal(t, authz.NoOpinion, may())
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}}}
	v.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
	v.create(binding, rbacv1.SchemeGroupVersion.WithKind("RoleBinding"))
	require.Equal(t, authz.Allow, may(), "a right holds as soon as it is granted")

	key := storage.Key{Collection: "rbac.authorization.k8s.io/rolebindings", Namespace: "default", Name: "b"}
	o, err := v.other.Collection(key.Collection, storage.CollectionOptions{}).Get(t.Context(), "default", "b",
		storage.At{})
	require.NoError(t, err)
	_, err = v.other.Commit(t.Context(), storage.Write{Op: storage.Delete, Key: key, Expect: o.Revision})
	require.NoError(t, err)
	_, err = v.Store.Revision(t.Context())
	require.NoError(t, err)
	require.Equal(t, authz.NoOpinion, may())
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	v := newView(t)
	c := cluster.Credentials{Cluster: v.Cluster}
	deleted := secret("gone")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1767323045, 0)}
	v.create(deleted, secretKind)
	v.create(secret("a"), secretKind)
	found, err := c.Find(t.Context(), secrets, "default", "a")
	require.NoError(t, err)
	require.Equal(t, authn.Found{UID: "uid-of-a"}, found)
	found, err = c.Find(t.Context(), secrets, "default", "gone")
	require.NoError(t, err)
	require.True(t, deleted.DeletionTimestamp.Time.Equal(found.Deleted))
	_, err = c.Find(t.Context(), secrets, "default", "none")
	require.ErrorIs(t, err, authn.ErrNotFound)

	s, err := c.Secret(t.Context(), "default", "a")
	require.NoError(t, err)
	require.NoError(t, c.TokenUsed(t.Context(), s, "2026-01-02"))
	used, err := v.Newest(t.Context(), secretKind, "default", "a")
	require.NoError(t, err)
	require.Equal(t, "2026-01-02", used.GetLabels()[authn.LastUsedLabel])
	other := s.DeepCopy()
	other.UID = "another"
	require.ErrorIs(t, c.TokenUsed(t.Context(), other, "2026-01-02"), authn.ErrNotFound)
}
