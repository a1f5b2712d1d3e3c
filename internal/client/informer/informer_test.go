package informer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/testenv"
)

// diary records the calls of a handler.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(call string, o any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		call, o = "unknown "+call, last.Obj
	}
	m := o.(metav1.Object)
	d.lines = append(d.lines, fmt.Sprintf("%s %s %s", call, m.GetName(), m.GetLabels()["value"]))
}

func (d *diary) OnAdd(o any, initial bool) {
	if initial {
		d.note("begin", o)
	} else {
		d.note("add", o)
	}
}
func (d *diary) OnUpdate(_, o any) { d.note("update", o) }
func (d *diary) OnDelete(o any)    { d.note("delete", o) }

// take returns the lines since the last call, sorted within each kind of call.
func (d *diary) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

func (d *diary) await(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	require.Eventually(t, func() bool {
		got = append(got, d.take()...)
		return len(got) >= len(want)
	}, time.Minute, time.Millisecond)
	require.Equal(t, want, got)
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"value": value}}}
}

// start runs the informers of a factory until the test ends.
func start(t testing.TB, f informers.SharedInformerFactory) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(f.Shutdown)
	t.Cleanup(cancel)
	f.StartWithContext(ctx)
}

func TestInformer_MatchesClientGosInformer(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	maps := client.CoreV1().ConfigMaps("default")
	const names = 5
	change := func() {
		name := fmt.Sprintf("cm-%d", rand.IntN(names))
		value := fmt.Sprint(rand.IntN(1000))
		var err error
		if rand.IntN(3) == 0 {
			err = maps.Delete(t.Context(), name, metav1.DeleteOptions{})
		} else if _, err = maps.Update(t.Context(), configMap(name, value), metav1.UpdateOptions{}); err != nil {
			_, err = maps.Create(t.Context(), configMap(name, value), metav1.CreateOptions{})
		}
		require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	}
	for range 10 {
		change()
	}
	var ours, theirs diary
	f := informer.NewFactory(client, informer.Options{Namespace: "default"})
	g := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"))
	for d, i := range map[*diary]cache.SharedIndexInformer{
		&ours: f.Core().V1().ConfigMaps().Informer(), &theirs: g.Core().V1().ConfigMaps().Informer(),
	} {
		_, err := i.AddEventHandler(d)
		require.NoError(t, err)
	}
	start(t, f)
	start(t, g)
	f.WaitForCacheSync(t.Context().Done())
	g.WaitForCacheSync(t.Context().Done())
	require.Eventually(t, func() bool { // client-go's handlers are behind its store
		theirs.mu.Lock()
		defer theirs.mu.Unlock()
		return len(theirs.lines) == len(g.Core().V1().ConfigMaps().Informer().GetStore().List())
	}, time.Minute, time.Millisecond)
	require.ElementsMatch(t, theirs.take(), ours.take())
	for range 200 {
		change()
	}
	_, err := maps.Create(t.Context(), configMap("last", ""), metav1.CreateOptions{})
	require.NoError(t, err)
	seen := func(d *diary) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return slices.Contains(d.lines, "add last ")
	}
	require.Eventually(t, func() bool { return seen(&ours) && seen(&theirs) }, time.Minute, time.Millisecond)
	require.Equal(t, theirs.take(), ours.take())
	require.ElementsMatch(t, g.Core().V1().ConfigMaps().Informer().GetStore().List(),
		f.Core().V1().ConfigMaps().Informer().GetStore().List())
	listed, err := f.Core().V1().ConfigMaps().Lister().ConfigMaps("default").Get("last")
	require.NoError(t, err)
	require.Equal(t, "last", listed.Name)
}

func TestAddEventHandler_OnARunningInformerGetsAllObjects(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	f := informer.NewFactory(client, informer.Options{Namespace: "default"})
	i := f.Core().V1().ConfigMaps().Informer()
	_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a", "1"), metav1.CreateOptions{})
	require.NoError(t, err)
	start(t, f)
	f.WaitForCacheSync(t.Context().Done())
	var d diary
	handle, err := i.AddEventHandler(&d)
	require.NoError(t, err)
	require.True(t, handle.HasSynced())
	require.Equal(t, []string{"begin a 1"}, d.take())
	_, err = client.CoreV1().ConfigMaps("default").Update(t.Context(), configMap("a", "2"), metav1.UpdateOptions{})
	require.NoError(t, err)
	d.await(t, "update a 2")
	require.NoError(t, i.RemoveEventHandler(handle))
	err = client.CoreV1().ConfigMaps("default").Delete(t.Context(), "a", metav1.DeleteOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(i.GetStore().List()) == 0 }, time.Minute, time.Millisecond)
	require.Empty(t, d.take())
}

func TestNewMetadata_SeesMetadataOnly(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	i := informer.NewMetadata(client, corev1.SchemeGroupVersion.WithResource("configmaps"), nil)
	var d diary
	_, err := i.AddEventHandler(&d)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.RunWithContext(ctx) })
	require.True(t, cache.WaitFor(ctx, "", i.HasSyncedChecker()))
	d.take()
	cm := configMap("a", "1")
	cm.Data = map[string]string{"large": "text"}
	cm, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
	require.NoError(t, err)
	d.await(t, "add a 1")
	o, _, err := i.GetStore().GetByKey("default/a")
	require.NoError(t, err)
	require.Equal(t, cm.ObjectMeta, o.(*metav1.PartialObjectMetadata).ObjectMeta)
	cancel()
	running.Wait()
	require.True(t, i.IsStopped())
}

func TestFactory_KnowsTheResourceOfEachType(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	require.NoError(t, err)
	found := 0
	for _, list := range lists {
		for _, r := range list.APIResources {
			gvk := schema.FromAPIVersionAndKind(list.GroupVersion, r.Kind)
			example, err := scheme.Scheme.New(gvk)
			if err != nil || !slices.Contains(r.Verbs, "watch") {
				continue
			}
			f := informer.NewFactory(client, informer.Options{})
			f.InformerFor(example, nil)
			require.NotNil(t, f.Existing(gvk.GroupVersion().WithResource(r.Name)), "%v", gvk)
			found++
		}
	}
	require.Greater(t, found, 50)
}

// Not parallel: it counts the goroutines of the process.
func TestInformer_HasOneGoroutine(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	f := informer.NewFactory(client, informer.Options{})
	core, apps := f.Core().V1(), f.Apps().V1()
	some := []cache.SharedIndexInformer{core.Pods().Informer(), core.Services().Informer(), core.Secrets().Informer(),
		apps.Deployments().Informer(), apps.ReplicaSets().Informer()}
	for _, i := range some {
		for range 5 {
			_, err := i.AddEventHandler(&diary{})
			require.NoError(t, err)
		}
	}
	start(t, f)
	f.WaitForCacheSync(t.Context().Done())
	stacks := make([]byte, 1<<20)
	ours := regexp.MustCompile(`(?m)^\S+/informer\.\(\*Informer\)\.RunWithContext\(|^created by k8s\.io/client-go/tools/`)
	require.Len(t, ours.FindAllString(string(stacks[:runtime.Stack(stacks, true)]), -1), len(some))
}

// Fifty simultaneous requests would open fifty connections, and use one.
func TestFactory_OpensOneConnection(t *testing.T) {
	t.Parallel()
	config := rest.CopyConfig(testenv.Start(t, testenv.APIServerOnly()))
	var dials atomic.Int64
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	config.Transport = nil
	f := informer.NewFactory(kubernetes.NewForConfigOrDie(config), informer.Options{})
	core, apps := f.Core().V1(), f.Apps().V1()
	for _, i := range []cache.SharedIndexInformer{core.Pods().Informer(), core.Services().Informer(),
		core.Secrets().Informer(), core.Nodes().Informer(), core.Namespaces().Informer(), core.ConfigMaps().Informer(),
		apps.Deployments().Informer(), apps.ReplicaSets().Informer(), apps.DaemonSets().Informer()} {
		require.False(t, i.HasSynced())
	}
	start(t, f)
	f.WaitForCacheSync(t.Context().Done())
	require.EqualValues(t, 1, dials.Load())
}

func ExampleFactory() {
	config, stop, err := testenv.New(testenv.APIServerOnly())
	if err != nil {
		panic(err)
	}
	defer func() { _ = stop() }()
	ctx, cancel := context.WithCancel(context.Background())
	f := informer.NewFactory(kubernetes.NewForConfigOrDie(config), informer.Options{})
	defer f.Shutdown()
	defer cancel()
	namespaces := f.Core().V1().Namespaces().Lister()
	f.StartWithContext(ctx)
	f.WaitForCacheSyncWithContext(ctx)
	n, err := namespaces.Get("default")
	fmt.Println(n.Name, err)
	// Output: default <nil>
}

// BenchmarkStart measures twenty informers, from their start to their end, with client-go's beside them.
func BenchmarkStart(b *testing.B) {
	client := kubernetes.NewForConfigOrDie(testenv.Start(b, testenv.APIServerOnly()))
	measure := func(b *testing.B, make func() informers.SharedInformerFactory) {
		b.ReportAllocs()
		for b.Loop() {
			f := make()
			core, apps, batch, rbac := f.Core().V1(), f.Apps().V1(), f.Batch().V1(), f.Rbac().V1()
			for _, i := range []cache.SharedIndexInformer{
				core.Pods().Informer(), core.Services().Informer(), core.Secrets().Informer(), core.Nodes().Informer(),
				core.Endpoints().Informer(), core.ConfigMaps().Informer(), core.Namespaces().Informer(),
				core.ServiceAccounts().Informer(), core.ResourceQuotas().Informer(),
				core.PersistentVolumes().Informer(), apps.Deployments().Informer(), apps.ReplicaSets().Informer(),
				apps.DaemonSets().Informer(), apps.StatefulSets().Informer(), batch.Jobs().Informer(),
				batch.CronJobs().Informer(), rbac.Roles().Informer(), rbac.RoleBindings().Informer(),
				rbac.ClusterRoles().Informer(), rbac.ClusterRoleBindings().Informer(),
			} {
				_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{})
				require.NoError(b, err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			f.StartWithContext(ctx)
			f.WaitForCacheSyncWithContext(ctx)
			cancel()
			f.Shutdown()
		}
	}
	b.Run("ours", func(b *testing.B) {
		measure(b, func() informers.SharedInformerFactory { return informer.NewFactory(client, informer.Options{}) })
	})
	b.Run("client-go's", func(b *testing.B) {
		measure(b, func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(client, 0) })
	})
}
