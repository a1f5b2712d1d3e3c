package loopback_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

func TestObjects_UpdateWritesOnlyChanges(t *testing.T) {
	t.Parallel()
	registry := api.NewRegistry(builtin.Kinds()...)
	client := loopback.New(loopback.Options{Registry: registry, Clock: clock.RealClock{},
		Store: servertest.Store(t, servertest.Backend(t), storage.Options{})})
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	res := registry.Snapshot().Kind(kind)
	create, err := client.Create(res, &corev1.ConfigMap{Data: map[string]string{"a": "b"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	require.NoError(t, err)
	result, err := client.Commit(t.Context(), create)
	require.NoError(t, err)
	stored := result.Objects[0]

	writes, err := client.Update(t.Context(), res, stored, "", func(api.Object) {})
	require.NoError(t, err)
	require.Empty(t, writes)
	writes, err = client.Update(t.Context(), res, stored, "", func(obj api.Object) {
		obj.(*corev1.ConfigMap).Data = map[string]string{"k": "v"}
	})
	require.NoError(t, err)
	require.Len(t, writes, 1)
	require.Equal(t, stored.Revision, writes[0].Expect)
	_, err = client.Commit(t.Context(), writes...)
	require.NoError(t, err)

	obj, err := client.Object(t.Context(), kind, "default", "a")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"k": "v"}, obj.(*corev1.ConfigMap).Data)
	require.Equal(t, "kube-apiserver", obj.GetManagedFields()[0].Manager)
	_, err = client.Object(t.Context(), kind, "default", "b")
	require.True(t, apierrors.IsNotFound(err))
}
