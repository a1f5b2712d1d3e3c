package apiserver_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// wrapped is the ResponseWriter of a middleware.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A middleware sees the user and the attributes of a request, and the outcome of a write.
func TestMiddleware_SeesRequestsAndTheirOutcome(t *testing.T) {
	t.Parallel()
	type seen struct {
		user, verb, resource, subresource, namespace, name, written string
		unchanged                                                   bool
	}
	var mu sync.Mutex
	var all []seen
	server := servertest.Start(t, apiserver.Options{Middleware: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(wrapped{w}, r)
			a := apiserver.Attributes(r)
			written, unchanged := apiserver.Written(r)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, seen{a.User.Name, a.Verb, a.Resource, a.Subresource, a.Namespace, a.Name,
				written, unchanged})
		})
	}})
	maps, ctx := server.Client(t).CoreV1().ConfigMaps("default"), t.Context()
	created, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = maps.Update(ctx, created, metav1.UpdateOptions{})
	require.NoError(t, err)
	patch := func(body string, o metav1.PatchOptions) {
		_, err := maps.Patch(ctx, created.Name, types.MergePatchType, []byte(body), o)
		require.NoError(t, err)
	}
	patch(`{}`, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	patch(`{"data":{"k":"v"}}`, metav1.PatchOptions{})
	_, err = maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	_, err = server.Client(t).CoreV1().Namespaces().Finalize(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.UpdateOptions{})
	require.NoError(t, err)

	name := created.Name
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []seen{
		{"admin", "create", "configmaps", "", "default", "", name, false},
		{"admin", "update", "configmaps", "", "default", name, name, true},
		{"admin", "patch", "configmaps", "", "default", name, name, false},
		{"admin", "patch", "configmaps", "", "default", name, name, false},
		{"admin", "list", "configmaps", "", "default", "", "", false},
		{"admin", "update", "namespaces", "finalize", "default", "default", "default", false},
	}, all)
}
