package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

func TestStopAPIServer_KeepsDataAndAddress(t *testing.T) {
	t.Parallel()
	env, ctx := testenv.StartEnvironment(t), t.Context()
	client := kubernetes.NewForConfigOrDie(env.Config)
	account, err := env.ServiceAccount(ctx, "default", "operator")
	require.NoError(t, err)
	created, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("kept"), metav1.CreateOptions{})
	require.NoError(t, err)
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)

	require.Error(t, env.StartAPIServer(), "it runs")
	require.NoError(t, env.StopAPIServer())
	require.Error(t, env.StopAPIServer(), "it is stopped")
	for range w.ResultChan() { // until the watch has ended
	}
	_, err = client.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
	require.True(t, utilnet.IsConnectionRefused(err), "%v", err)

	require.NoError(t, env.StartAPIServer())
	got, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created, got)
	require.Equal(t, "system:serviceaccount:default:operator", whoAmI(t, account).Username, "tokens are valid as before")

	// The other parts reconnect by themselves.
	_, err = client.AppsV1().Deployments("default").Create(ctx, deployment("web", 2), metav1.CreateOptions{})
	require.NoError(t, err)
	awaitReady(t, client, "web", 2)
}

func TestStop_MayFollowAnOutage(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t)
	require.NoError(t, env.StopAPIServer())
	require.NoError(t, env.Stop())
}

// awaitReady waits until this many pods of a Deployment are ready.
func awaitReady(t testing.TB, client kubernetes.Interface, name string, replicas int32) {
	t.Helper()
	w, err := client.AppsV1().Deployments("default").Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + name, TimeoutSeconds: new(int64(60))})
	require.NoError(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if d, ok := e.Object.(*appsv1.Deployment); ok && d.Status.ReadyReplicas == replicas {
			return
		}
	}
	t.Fatalf("the watch of Deployment %s ended", name)
}

func TestDropWatches_EndsMatchingWatches(t *testing.T) {
	t.Parallel()
	env, ctx := testenv.StartEnvironment(t, testenv.APIServerOnly()), t.Context()
	client := kubernetes.NewForConfigOrDie(env.Config)
	maps, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	pods, err := client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, env.DropWatches(testenv.Match{Resource: "pods"}))
	_, open := <-pods.ResultChan()
	require.False(t, open)
	_, err = client.CoreV1().ConfigMaps("default").Create(ctx, configMap("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, watch.Added, (<-maps.ResultChan()).Type)
	require.Equal(t, 1, env.DropWatches())
	require.Zero(t, env.DropWatches())
	_, open = <-maps.ResultChan()
	require.False(t, open)
}

func TestCompact_ExpiresEveryRevisionThatAClientHasSeen(t *testing.T) {
	t.Parallel()
	env, ctx := testenv.StartEnvironment(t, testenv.APIServerOnly()), t.Context()
	maps := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")
	created, err := maps.Create(ctx, configMap("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	list, err := maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	open, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)

	require.NoError(t, env.Compact(ctx))
	for e := range open.ResultChan() {
		require.Fail(t, "nothing has happened", "%v", e)
	}
	for _, seen := range []string{created.ResourceVersion, list.ResourceVersion} {
		w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: seen})
		require.NoError(t, err)
		e := <-w.ResultChan()
		require.Equal(t, watch.Error, e.Type)
		require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(e.Object)), "%v", e.Object)
		w.Stop()
	}
	_, err = maps.List(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	require.True(t, apierrors.IsResourceExpired(err), "%v", err)

	list, err = maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	_, err = maps.Create(ctx, configMap("b"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "b", (<-w.ResultChan()).Object.(*corev1.ConfigMap).Name)
}
