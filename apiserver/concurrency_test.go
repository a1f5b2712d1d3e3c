package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// atOnce runs n goroutines that start together, and waits for them.
func atOnce(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Go(func() { ready.Done(); <-gate; f(i) })
	}
	ready.Wait()
	close(gate)
	done.Wait()
}

func TestConcurrency_PatchesWithoutResourceVersionAllSurvive(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed().CoreV1().ConfigMaps("default")
	s.create(configMaps, configMap("a"))
	const n = 50
	atOnce(n, func(i int) {
		_, err := client.Patch(t.Context(), "a", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"l%d":"x"}}}`, i), metav1.PatchOptions{})
		assert.NoError(t, err)
	})
	require.Len(t, s.get(configMaps+"/a").object().GetLabels(), n)
}

func TestConcurrency_ExactlyOneUpdateOfAResourceVersionWins(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed().CoreV1().ConfigMaps("default")
	s.create(configMaps, configMap("a"))
	read, err := client.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	var won atomic.Int32
	var winner atomic.Value
	atOnce(50, func(i int) {
		mine := read.DeepCopy()
		mine.Data = map[string]string{"by": fmt.Sprint(i)}
		_, err := client.Update(t.Context(), mine, metav1.UpdateOptions{})
		if err == nil {
			won.Add(1)
			winner.Store(fmt.Sprint(i))
			return
		}
		assert.True(t, apierrors.IsConflict(err), "%v", err)
	})
	require.EqualValues(t, 1, won.Load())
	require.Equal(t, winner.Load(), s.get(configMaps+"/a").at("data", "by"))
}

func TestConcurrency_ExactlyOneCreateWins(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed().CoreV1().ConfigMaps("default")
	var won atomic.Int32
	atOnce(50, func(i int) {
		_, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
			metav1.CreateOptions{})
		if err == nil {
			won.Add(1)
			return
		}
		assert.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	})
	require.EqualValues(t, 1, won.Load())
}

func TestConcurrency_ExactlyOneDeleteWins(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed().CoreV1().ConfigMaps("default")
	s.create(configMaps, configMap("a"))
	var won atomic.Int32
	atOnce(20, func(int) {
		err := client.Delete(t.Context(), "a", metav1.DeleteOptions{})
		if err == nil {
			won.Add(1)
			return
		}
		assert.True(t, apierrors.IsNotFound(err), "%v", err)
	})
	require.EqualValues(t, 1, won.Load())
}

// Several informers watch while many clients write. In the end each has the server's objects, and none has received
// events out of order.
func TestConcurrency_InformersSeeEverything(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed()
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	var disorder atomic.Int32
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, now any) {
		if len(old.(*corev1.ConfigMap).ResourceVersion) > len(now.(*corev1.ConfigMap).ResourceVersion) ||
			len(old.(*corev1.ConfigMap).ResourceVersion) == len(now.(*corev1.ConfigMap).ResourceVersion) &&
				old.(*corev1.ConfigMap).ResourceVersion >= now.(*corev1.ConfigMap).ResourceVersion {
			disorder.Add(1)
		}
	}})
	require.NoError(t, err)
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.WaitForCacheSync(ctx.Done())

	maps := client.CoreV1().ConfigMaps("default")
	atOnce(16, func(i int) {
		for j := range 20 {
			name := fmt.Sprintf("c-%d-%d", i, j)
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
				metav1.CreateOptions{})
			assert.NoError(t, err)
			_, err = maps.Patch(ctx, name, types.MergePatchType, []byte(`{"data":{"k":"v"}}`), metav1.PatchOptions{})
			assert.NoError(t, err)
			if j%3 == 0 {
				assert.NoError(t, maps.Delete(ctx, name, metav1.DeleteOptions{}))
			}
		}
	})
	list, err := maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	want := map[string]string{}
	for _, c := range list.Items {
		want["default/"+c.Name] = c.ResourceVersion
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := map[string]string{}
		for _, obj := range informer.GetStore().List() {
			cm := obj.(*corev1.ConfigMap)
			got["default/"+cm.Name] = cm.ResourceVersion
		}
		assert.Equal(c, want, got)
	}, patience, tick)
	require.Zero(t, disorder.Load())
}

func TestConcurrency_GenerateNameNeverCollides(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.typed().CoreV1().ConfigMaps("default")
	atOnce(16, func(int) {
		for range 20 {
			_, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "g-"}},
				metav1.CreateOptions{})
			assert.NoError(t, err)
		}
	})
	require.Len(t, s.get(configMaps).ok(http.StatusOK).names(), 320)
}
