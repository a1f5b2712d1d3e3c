//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// kinds are custom kinds of one group, as one server shows them.
type kinds struct {
	t *testing.T
	dynamic.Interface
}

func (c *cluster) kinds() kinds { return kinds{c.t, dynamic.NewForConfigOrDie(c.config)} }

func resourceOf(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: plural}
}

func kindOf(plural string) string { return "Kind" + plural }

// define creates a kind with a default color for its objects, and waits until it is established.
func (k kinds) define(ctx context.Context, plural, color string) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".example.com"},
		"spec": map[string]any{"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "kind": kindOf(plural)},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
					"properties": map[string]any{"color": map[string]any{"type": "string", "default": color}}}}}}}})
	if err != nil {
		return err
	}
	_, err = k.Resource(definitions).Patch(ctx, plural+".example.com", types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: "test"})
	if err != nil {
		return err
	}
	return k.await(ctx, plural+" is established", func() (bool, error) {
		crd, err := k.Resource(definitions).Get(ctx, plural+".example.com", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		names, _, err := unstructured.NestedString(crd.Object, "status", "acceptedNames", "plural")
		return names == plural, err
	})
}

// await is like eventually, for other goroutines than the test's.
func (k kinds) await(ctx context.Context, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		switch ok, err := holds(); {
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case ok:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (k kinds) create(ctx context.Context, plural, name string, finalizers ...string) error {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": kindOf(plural)}}
	obj.SetName(name)
	obj.SetFinalizers(finalizers)
	_, err := k.Resource(resourceOf(plural)).Namespace("default").Create(ctx, obj, metav1.CreateOptions{})
	return err
}

// live runs a kind through its life cycle: one server creates it, the other one uses and updates it, the first one
// deletes it.
func live(ctx context.Context, one, other kinds, plural string) error {
	if err := one.define(ctx, plural, "red"); err != nil {
		return fmt.Errorf("define: %w", err)
	}
	if err := other.create(ctx, plural, "a"); err != nil {
		return fmt.Errorf("create by the other server: %w", err)
	}
	if err := other.define(ctx, plural, "blue"); err != nil {
		return fmt.Errorf("change: %w", err)
	}
	err := one.await(ctx, plural+" has the new default", func() (bool, error) {
		if err := one.create(ctx, plural, "b"); err != nil {
			return false, err
		}
		b, err := one.Resource(resourceOf(plural)).Namespace("default").Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return b.Object["color"] == "blue", one.Resource(resourceOf(plural)).Namespace("default").Delete(ctx, "b",
			metav1.DeleteOptions{})
	})
	if err != nil {
		return err
	}
	if err := one.Resource(definitions).Delete(ctx, plural+".example.com", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	for _, server := range []kinds{other, one} {
		err := server.await(ctx, plural+" is gone", func() (bool, error) {
			_, err := server.Resource(resourceOf(plural)).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				return true, nil
			}
			return false, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func TestDefinitions_AreTheSameOnTwoServers(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, false)
	first := e.apiserver(dataDir(t))
	dir := dataDir(t)
	require.NoError(t,
		os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(filepath.Dir(first.kubeconfig), "pki"))))
	servers := []kinds{first.kinds(), e.apiserver(dir).kinds()}

	// An informer for a permanent kind, and one for a kind that comes and goes.
	require.NoError(t, servers[0].define(t.Context(), "stays", "red"))
	informers := dynamicinformer.NewDynamicSharedInformerFactory(servers[1], 0)
	stays := informers.ForResource(resourceOf("stays")).Informer()
	_ = informers.ForResource(resourceOf("lives0")).Informer()
	informers.Start(t.Context().Done())
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), stays.HasSynced))

	const lives, rounds = 4, 6
	errs := make([]error, lives)
	var running sync.WaitGroup
	for i := range lives {
		running.Go(func() {
			for range rounds {
				if errs[i] = live(t.Context(), servers[i%2], servers[1-i%2], fmt.Sprintf("lives%d", i)); errs[i] != nil {
					return
				}
			}
		})
	}
	for i := range 200 {
		require.NoError(t, servers[i%2].create(t.Context(), "stays", fmt.Sprint("s", i)))
	}
	running.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	eventually(t, time.Minute, "the informer has all objects", func() bool {
		return len(stays.GetStore().ListKeys()) == 200
	})
	require.NoError(t, servers[0].define(t.Context(), "lives0", "red"))
	require.NoError(t, servers[0].create(t.Context(), "lives0", "last"))
	eventually(t, 2*time.Minute, "the informer of a kind that came back has its object", func() bool {
		return len(informers.ForResource(resourceOf("lives0")).Informer().GetStore().ListKeys()) == 1
	})
}

func TestDefinitions_DeletionContinuesAfterAKill(t *testing.T) {
	t.Parallel()
	dir, ctx := dataDir(t), t.Context()
	start := func() (*cluster, kinds) {
		c := up(t, dir, "--nodes", "0")
		return c, c.kinds()
	}
	c, server := start()
	require.NoError(t, server.define(ctx, "many", "red"))
	const objects = 2000
	for i := range objects {
		require.NoError(t, server.create(ctx, "many", fmt.Sprint("o", i)))
	}
	require.NoError(t, server.create(ctx, "many", "held", "example.com/hold"))
	require.NoError(t, server.Resource(definitions).Delete(ctx, "many.example.com", metav1.DeleteOptions{}))
	left := func() int {
		list, err := server.Resource(resourceOf("many")).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items)
	}
	for _, limit := range []int{objects, objects / 2} { // kill the server as soon as this many are left
		eventually(t, time.Minute, "objects go", func() bool { return left() <= limit })
		c.server.kill()
		c, server = start()
		err := server.create(ctx, "many", "late")
		require.True(t, apierrors.IsForbidden(err), "%v", err)
	}
	eventually(t, time.Minute, "only the object with a finalizer is left", func() bool { return left() == 1 })
	_, err := server.Resource(resourceOf("many")).Namespace("default").Patch(ctx, "held", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, time.Minute, "the definition is gone", func() bool {
		_, err := server.Resource(definitions).Get(ctx, "many.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	require.NoError(t, server.define(ctx, "many", "red"))
	require.Zero(t, left(), "no object of the former kind comes back")
}
