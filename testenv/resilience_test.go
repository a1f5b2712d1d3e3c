package testenv_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/coxswain-dev/coxswain/testenv"
)

// siteOperator matches the requests of the operator in these tests.
var siteOperator = testenv.Match{UserAgent: "site-operator"}

// startSites starts a control plane with the site operator on it, and returns a client without a cache.
func startSites(t *testing.T, opts ...testenv.Option) (*testenv.Environment, client.WithWatch) {
	t.Helper()
	env := testenv.StartEnvironment(t, opts...)
	as := env.User("site-operator", "system:masters")
	as.UserAgent = siteOperator.UserAgent
	mgr, err := ctrl.NewManager(as, ctrl.Options{
		Metrics:    server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	require.NoError(t, err)
	require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("sites").
		For(&corev1.ConfigMap{}, builder.WithPredicates(isSite)).Owns(&appsv1.Deployment{}).
		Complete(siteReconciler{mgr.GetClient()}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	require.True(t, mgr.GetCache().WaitForCacheSync(ctx))
	c, err := client.NewWithWatch(env.Config, client.Options{})
	require.NoError(t, err)
	return env, c
}

func siteOf(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		Labels: map[string]string{siteLabel: "yes"}}, Data: map[string]string{"image": "blog:1"}}
}

// awaitSite waits until the operator reports that this many pods of a site are ready.
func awaitSite(t *testing.T, c client.Client, name, ready string) {
	t.Helper()
	soon(t, func(t *assert.CollectT) {
		var site corev1.ConfigMap
		require.NoError(t, c.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: name}, &site))
		require.Equal(t, ready, site.Annotations[siteReady])
	})
}

// The API server stops while the operator waits for the answer to a write, and starts again.
func TestOperator_RecoversFromAnOutageDuringAReconcile(t *testing.T) {
	t.Parallel()
	env, c := startSites(t)
	write := siteOperator
	write.Verb, write.Resource = "patch", "deployments"
	slow := env.Inject(testenv.Fault{Match: write, Delay: time.Hour, Times: 1})
	require.NoError(t, c.Create(t.Context(), siteOf("blog")))
	require.Eventually(t, func() bool { return slow.Hits() == 1 }, longEnough, tick)
	require.NoError(t, env.StopAPIServer())
	require.NoError(t, env.StartAPIServer())
	awaitSite(t, c, "blog", "1")
	require.Equal(t, 0, env.Calls(write)[0].Code, "the first write had no answer")
}

// An operator's watches are older than the history: it has to list again, and must still see all changes.
func TestOperator_RecoversFromExpiredWatches(t *testing.T) {
	t.Parallel()
	env, c := startSites(t)
	require.NoError(t, c.Create(t.Context(), siteOf("before")))
	awaitSite(t, c, "before", "1")
	compacted := time.Now()
	require.NoError(t, env.Compact(t.Context()))
	require.NoError(t, c.Create(t.Context(), siteOf("after")))
	awaitSite(t, c, "after", "1")
	anew := siteOperator
	anew.Verb, anew.Resource = "list,watch", "configmaps"
	require.Greater(t, env.Calls(anew).Since(compacted).Count(), 1, "a watch that expired, and what followed:\n%v",
		env.Calls(anew))
	require.NoError(t, c.Delete(t.Context(), siteOf("before")))
	soon(t, func(t *assert.CollectT) {
		err := c.Get(context.Background(), client.ObjectKeyFromObject(siteOf("before")), &corev1.ConfigMap{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

// A write is stored, but the operator gets no answer: it has to find out, and must not do the work twice.
func TestOperator_RecoversFromALostAnswer(t *testing.T) {
	t.Parallel()
	env, c := startSites(t)
	writes := siteOperator
	writes.Verb = "create,update,patch"
	lost := env.Inject(testenv.Fault{Match: writes, Err: testenv.ErrNoAnswer, After: true, Times: 2})
	require.NoError(t, c.Create(t.Context(), siteOf("blog")))
	awaitSite(t, c, "blog", "1")
	require.Equal(t, 2, lost.Hits())
	var sites appsv1.DeploymentList
	require.NoError(t, c.List(t.Context(), &sites))
	require.Len(t, sites.Items, 1)
	require.NotZero(t, env.Calls(writes).Useless().Count(), "what the lost writes had done was found done already")
}

// An idle operator sends no requests.
func TestCalls_ShowThatAnOperatorBecomesIdle(t *testing.T) {
	t.Parallel()
	env, c := startSites(t)
	require.NoError(t, c.Create(t.Context(), siteOf("blog")))
	awaitSite(t, c, "blog", "1")
	require.Empty(t, env.Calls(siteOperator).HotLoops(20, time.Second))
	require.Empty(t, env.Calls(siteOperator).Conflicts())
	require.LessOrEqual(t, env.Calls(siteOperator).Writes().Count(), 20, env.Calls(siteOperator).Summary())
}

// namespaceGone deletes a namespace with objects in it, and returns when it no longer exists.
func namespaceGone(t testing.TB, client kubernetes.Interface, name string) {
	ctx := context.Background()
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	for _, m := range []string{"a", "b", "c"} {
		in := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m}}
		_, err := client.CoreV1().ConfigMaps(name).Create(ctx, in, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	w, err := client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name,
		TimeoutSeconds: new(int64(60))})
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			return
		}
	}
	require.Fail(t, "the namespace is still there")
}

func TestNamespace_IsDeletedWithItsContent(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.WithNodes(0))
	client := kubernetes.NewForConfigOrDie(env.Config)
	namespaceGone(t, client, "shop")
	_, err := client.CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	namespaceGone(t, client, "shop") // the name is free again, and the new namespace is empty
}

func TestGarbage_IsCollected(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.WithNodes(0))
	client, ctx := kubernetes.NewForConfigOrDie(env.Config), t.Context()
	owner, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("owner"), metav1.CreateOptions{})
	require.NoError(t, err)
	owned := configMap("owned")
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name,
		UID: owner.UID}}
	_, err = client.CoreV1().ConfigMaps("default").Create(ctx, owned, metav1.CreateOptions{})
	require.NoError(t, err)
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=owned",
		TimeoutSeconds: new(int64(60))})
	require.NoError(t, err)
	defer w.Stop()
	require.NoError(t, client.CoreV1().ConfigMaps("default").Delete(ctx, "owner", metav1.DeleteOptions{}))
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			return
		}
	}
	require.Fail(t, "the owned object is still there")
}

// BenchmarkNamespace_Gone measures the time from the creation of a namespace with three objects until it no longer
// exists.
func BenchmarkNamespace_Gone(b *testing.B) {
	env := testenv.StartEnvironment(b, testenv.WithNodes(0))
	client := kubernetes.NewForConfigOrDie(env.Config)
	namespaceGone(b, client, "shop") // the controllers have started
	for b.Loop() {
		namespaceGone(b, client, "shop")
	}
}
