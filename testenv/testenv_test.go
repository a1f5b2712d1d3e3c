package testenv_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"go.uber.org/goleak"

	"github.com/coxswain-dev/coxswain/testenv"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

// No goroutine of a control plane may remain.
func TestMain(m *testing.M) {
	leak.VerifyTestMain(m,
		// controller-runtime's logger and klog's flusher live as long as the process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// controller-runtime's cache filters watches with this function, which blocks forever if an event is on its
		// way when the cache stops.
		goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"),
	)
}

func TestStart_BringsADeploymentToReady(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	_, err := client.AppsV1().Deployments("default").Create(ctx, deployment("web", 3), metav1.CreateOptions{})
	require.NoError(t, err)
	lw := cache.NewListWatchFromClient(client.AppsV1().RESTClient(), "deployments", "default", fields.Everything())
	_, err = watchtools.UntilWithSync(ctx, lw, &appsv1.Deployment{}, nil, func(e watch.Event) (bool, error) {
		return e.Object.(*appsv1.Deployment).Status.ReadyReplicas == 3, nil
	})
	require.NoError(t, err)
}

func TestStart_ManyAtOnceShareNothing(t *testing.T) {
	t.Parallel()
	for range 20 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.WithNodes(2)))
			nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, nodes.Items, 2)
			_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
			require.NoError(t, err, "another control plane's objects are not here")
		})
	}
}

func TestStart_PartsAreOptional(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, nodes.Items)
	created, err := client.AppsV1().Deployments("default").Create(t.Context(), deployment("web", 1),
		metav1.CreateOptions{})
	require.NoError(t, err)
	require.Zero(t, created.Status.ObservedGeneration)
}
