package ways_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/proxy"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/node/simulated"
	"github.com/coxswain-dev/coxswain/scheduler"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

var quiet = slog.New(slog.DiscardHandler)

// run starts components, and stops them when the test ends.
func run(t *testing.T, components ...func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, component := range components {
		running.Go(func() {
			if err := component(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// each draws stacks one below the other.
func each(stacks [][]entry) (text string) {
	for _, stack := range stacks {
		text += draw(stack)
	}
	return text
}

// The pod of a Deployment becomes ready and an endpoint of a Service. A proxy then commits the Service's rules.
func TestWays_PodAndService(t *testing.T) {
	tr := &trace{}
	s, client := tr.serve(t, servertest.Backend(t))
	tr.start()
	run(t, func(ctx context.Context) error {
		return controllers.Run(ctx, tr.client(s.Config, "controllers"), controllers.Options{Log: quiet,
			Controllers: []string{"deployment", "replicaset", "endpointslice"}})
	}, func(ctx context.Context) error {
		return scheduler.Run(ctx, tr.client(s.Config, "scheduler"), scheduler.Options{Log: quiet})
	}, func(ctx context.Context) error {
		return node.Run(ctx, tr.client(s.Config, "node"), node.Options{Names: []string{"node"}, Log: quiet,
			Script: func(*corev1.Pod, *simulated.Script) { tr.add("script") }})
	})
	labels := map[string]string{"app": "web"}
	_, err := client.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	tr.called(t, "controllers/lib/endpointslices POST endpointslices") // a later write adds the pod
	_, err = client.AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	documented(t, "pod", each(tr.called(t, "internal/client/informer GET deployments",
		"controllers/deployment POST replicasets", "controllers/replicaset POST pods",
		"scheduler/plugins POST pods/binding", "node/simulated script", "node PATCH pods/status")))

	endpoint := tr.called(t, "controllers/lib/endpointslices PUT endpointslices")
	namespace, err := netns.New()
	if err != nil {
		t.Skip("SKIPPED: no network namespace can be made: ", err)
	}
	t.Cleanup(func() { require.NoError(t, namespace.Close()) })
	tr.start()
	run(t, func(ctx context.Context) error {
		return proxy.Run(ctx, tr.client(s.Config, "proxy"), proxy.Options{Namespace: namespace, Log: quiet,
			Nodes: []string{"node"}, Ready: func() { tr.add("the rules are in force") }})
	})
	documented(t, "Service", each(append(endpoint, tr.called(t, "internal/client/informer GET endpointslices",
		"network/proxy the rules are in force")...)))
}
