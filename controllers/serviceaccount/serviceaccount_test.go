package serviceaccount

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

func TestServiceAccount_IsInEveryActiveNamespace(t *testing.T) {
	t.Parallel()
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	terminating := namespace("going")
	terminating.DeletionTimestamp, terminating.Finalizers = new(metav1.Now()), []string{"example.com/hold"}
	e := fakeenv.New(t, namespace("a"), namespace("b"), terminating,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "default", UID: "of a user"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other"}})
	e.Start(New)
	accounts := func() (found []string) {
		list, err := e.Client().CoreV1().ServiceAccounts("").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, a := range list.Items {
			found = append(found, a.Namespace+"/"+a.Name)
		}
		return found
	}
	require.ElementsMatch(t, []string{"a/default", "a/other", "b/default"}, accounts())
	require.Len(t, e.Writes("create", "serviceaccounts"), 1)
	require.NoError(t, e.Client().CoreV1().ServiceAccounts("a").Delete(t.Context(), "default", metav1.DeleteOptions{}))
	e.Eventually("it is created again", func() bool { return len(accounts()) == 3 })
	_, err := e.Client().CoreV1().Namespaces().Create(t.Context(), namespace("new"), metav1.CreateOptions{})
	require.NoError(t, err)
	e.Eventually("a new namespace has one", func() bool { return len(accounts()) == 4 })
}
