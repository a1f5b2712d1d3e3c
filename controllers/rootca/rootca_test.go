package rootca

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func terminating(name string) *corev1.Namespace {
	ns := namespace(name)
	ns.DeletionTimestamp, ns.Finalizers = new(metav1.Now()), []string{"example.com/hold"}
	return ns
}

func published(t *testing.T, e *fakeenv.Env) map[string]string {
	list, err := e.Client().CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	found := map[string]string{}
	for _, cm := range list.Items {
		found[cm.Namespace+"/"+cm.Name] = cm.Data["ca.crt"]
	}
	return found
}

func TestRootCA_IsInEveryActiveNamespace(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, namespace("a"), namespace("b"), terminating("c"),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: name},
			Data: map[string]string{"ca.crt": "an earlier one", "more": "of a user"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "other"}})
	e.RootCA = []byte("PEM")
	e.Start(New)
	require.Equal(t, map[string]string{"a/" + name: "PEM", "b/" + name: "PEM", "b/other": ""}, published(t, e))
	b, err := e.Client().CoreV1().ConfigMaps("b").Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"ca.crt": "PEM"}, b.Data)
	require.EqualValues(t, 3, seriestest.Value(t, e.Registry, "root_ca_cert_publisher_sync_total", "code", "200"))
	require.EqualValues(t, 3, seriestest.Value(t, e.Registry, "root_ca_cert_publisher_sync_duration_seconds",
		"code", "200"))
}

func TestRootCA_IsRestoredAfterDeletionOrChange(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, namespace("a"))
	e.RootCA = []byte("PEM")
	e.Start(New)
	maps := e.Client().CoreV1().ConfigMaps("a")
	require.NoError(t, maps.Delete(t.Context(), name, metav1.DeleteOptions{}))
	e.Eventually("it is created again", func() bool { return published(t, e)["a/"+name] == "PEM" })
	cm, err := maps.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	cm.Data["ca.crt"], cm.ResourceVersion = "another", "2"
	_, err = maps.Update(t.Context(), cm, metav1.UpdateOptions{})
	require.NoError(t, err)
	e.Eventually("its content is restored", func() bool { return published(t, e)["a/"+name] == "PEM" })
}

func TestRootCA_PublishesNothingWithoutACA(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, namespace("a"))
	e.Start(New)
	require.Empty(t, published(t, e))
}
