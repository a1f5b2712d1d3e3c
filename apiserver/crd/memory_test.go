package crd_test

import (
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// A kind that is gone leaves nothing in memory: its registration, by which its schema, rules and models are reached,
// is garbage, however it was used.
func TestDefinition_LeavesNoMemoryBehind(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, client dynamic.Interface, paths discovery.DiscoveryInterface){
		"unused": func(*testing.T, dynamic.Interface, discovery.DiscoveryInterface) {},
		"created": func(t *testing.T, client dynamic.Interface, _ discovery.DiscoveryInterface) {
			_, err := client.Resource(widgets).Namespace("default").
				Create(t.Context(), widget("a", map[string]any{"size": int64(2)}), metav1.CreateOptions{})
			require.NoError(t, err)
		},
		"applied": func(t *testing.T, client dynamic.Interface, _ discovery.DiscoveryInterface) {
			_, err := client.Resource(widgets).Namespace("default").
				Apply(t.Context(), "a", widget("a", map[string]any{}), metav1.ApplyOptions{FieldManager: "test"})
			require.NoError(t, err)
			_, err = client.Resource(widgets).Namespace("default").Patch(t.Context(), "a", types.MergePatchType,
				[]byte(`{"spec":{"size":7}}`), metav1.PatchOptions{})
			require.NoError(t, err)
		},
		"listed": func(t *testing.T, client dynamic.Interface, _ discovery.DiscoveryInterface) {
			_, err := client.Resource(widgets).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
		},
		"documented": func(t *testing.T, _ dynamic.Interface, paths discovery.DiscoveryInterface) {
			for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/example.com/v1", "/apis",
				"/apis/example.com/v1"} {
				_, err := paths.RESTClient().Get().AbsPath(path).DoRaw(t.Context())
				require.NoError(t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := api.NewRegistry(builtin.Kinds()...)
			config := servertest.Start(t, apiserver.Options{Registry: registry}).Config
			client := dynamic.NewForConfigOrDie(config)
			define(t, client)
			kind := widgets.GroupVersion().WithKind("Widget")
			require.Eventually(t, func() bool { return registry.Snapshot().Kind(kind) != nil }, patience, tick)
			res := weak.Make(registry.Snapshot().Kind(kind))
			use(t, client, discovery.NewDiscoveryClientForConfigOrDie(config))
			undefine(t, client)
			require.Eventually(t, func() bool {
				runtime.GC()
				return res.Value() == nil
			}, patience, 10*tick)
		})
	}
}

// undefine deletes the definition of widgets and waits until it is gone.
func undefine(t *testing.T, client dynamic.Interface) {
	t.Helper()
	require.NoError(t, client.Resource(definitions).Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := client.Resource(definitions).Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, tick)
}
