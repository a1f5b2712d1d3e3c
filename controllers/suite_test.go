package controllers_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cluster is an API server, the controllers, and something that makes pods ready.
type cluster struct {
	testing.TB
	*faults
	config *rest.Config // what the controllers use
	behind bool         // another server stands before the API server, and config is for that one
	client kubernetes.Interface
	ctx    context.Context
	from   string // the version of all there was before the test
}

// newBare is an API server on which nothing runs yet, with faults between it and the controllers.
func newBare(t testing.TB) *cluster {
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0), testenv.WithoutScheduler())
	f := &faults{}
	c := &cluster{TB: t, faults: f, config: f.between(config), client: kubernetes.NewForConfigOrDie(config), ctx: t.Context()}
	c.from = c.version()
	return c
}

// newCluster starts the controllers and waits for them. ready says which pods get ready; nil is for no node at all.
func newCluster(t testing.TB, ready func(*corev1.Pod) bool) *cluster {
	c := newBare(t)
	c.createNode()
	// The Node has nobody who renews its Lease.
	c.startControllers(controllers.Options{Controllers: []string{"*", "-node-lifecycle-controller", "-pod-garbage-collector-controller"}})
	if ready != nil {
		c.background(func(ctx context.Context) { runNode(ctx, c.client, ready) })
	}
	return c
}

func (c *cluster) createNamespace(name string) {
	_, err := c.client.CoreV1().Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

// createNode makes the Node that runNode stands for.
func (c *cluster) createNode() {
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c *cluster) background(run func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	c.Cleanup(stop)
	return stop
}

// follow calls see with each change of a watch, until the test ends. A watch that ends before fails it.
func follow[T runtime.Object](c *cluster, changes watch.Interface, see func(watch.EventType, T)) {
	c.background(func(ctx context.Context) {
		defer changes.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-changes.ResultChan():
				obj, ok := e.Object.(T)
				if c.ctx.Err() != nil { // the test has ended, and with it the watch
					return
				}
				if !ok {
					c.Errorf("the watch of %T ended", obj)
					return
				}
				see(e.Type, obj)
			}
		}
	})
}

func (c *cluster) startControllers(o controllers.Options) (stop func()) {
	ready := make(chan struct{})
	o.Ready = func() { close(ready) }
	var out io.Writer = io.Discard
	if testing.Verbose() {
		out = os.Stderr
	}
	o.Log = slog.New(slog.NewTextHandler(out, nil))
	config := c.asThemselves(&o)
	stop = c.background(func(ctx context.Context) {
		if err := controllers.Run(ctx, config, o); err != nil {
			c.Errorf("Run: %v", err)
		}
	})
	<-ready
	return stop
}

// runNode gives every pod a node, makes it ready if ready says so, and ends it when it is deleted.
func runNode(ctx context.Context, client kubernetes.Interface, ready func(*corev1.Pod) bool) {
	w, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if pod, isPod := e.Object.(*corev1.Pod); isPod && e.Type != "DELETED" {
				settle(ctx, client, pod, ready)
			}
		}
	}
}

func settle(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, ready func(*corev1.Pod) bool) {
	pods := client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		_ = pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
	case pod.Spec.NodeName == "":
		_ = pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{})
	case pod.Status.Phase == corev1.PodPending && ready(pod):
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
}

func always(*corev1.Pod) bool { return true }

// eventually waits until f holds, without holding up anything else.
func (c *cluster) eventually(what string, f func() bool) {
	c.Helper()
	require.Eventually(c, f, 2*time.Minute, 5*time.Millisecond, what)
}

func (c *cluster) deploy(name string, replicas int32, edit func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
			ProgressDeadlineSeconds: new(int32(600)),
			RevisionHistoryLimit:    new(int32(10)),
			Strategy:                rolling("25%", "25%"),
		},
	}
	if edit != nil {
		edit(d)
	}
	d, err := c.client.AppsV1().Deployments("default").Create(c.ctx, d, metav1.CreateOptions{})
	require.NoError(c, err)
	return d
}

// edit changes a Deployment as a user does.
func (c *cluster) edit(name string, change func(*appsv1.Deployment)) {
	editing(c, name, c.client.AppsV1().Deployments("default"), change)
}

// editing changes an object as a user does, again where somebody else was faster.
func editing[T any](c *cluster, name string, objects interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}, change func(T)) {
	c.eventually("edit "+name, func() bool {
		obj, err := objects.Get(c.ctx, name, metav1.GetOptions{})
		require.NoError(c, err)
		change(obj)
		_, err = objects.Update(c.ctx, obj, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			require.NoError(c, err)
		}
		return err == nil
	})
}

func (c *cluster) deployment(name string) *appsv1.Deployment {
	d, err := c.client.AppsV1().Deployments("default").Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return d
}

// awaitRollout waits as "kubectl rollout status" does.
func (c *cluster) awaitRollout(name string) *appsv1.Deployment {
	c.Helper()
	var d *appsv1.Deployment
	defer func() {
		if c.Failed() {
			c.Logf("deployment: %+v", d)
		}
	}()
	c.eventually("rollout of "+name, func() bool {
		d = c.deployment(name)
		s, n := d.Status, *d.Spec.Replicas
		return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n &&
			condition(d, appsv1.DeploymentProgressing).Reason == "NewReplicaSetAvailable"
	})
	return d
}

func condition(d *appsv1.Deployment, t appsv1.DeploymentConditionType) appsv1.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return appsv1.DeploymentCondition{}
}

func (c *cluster) replicaSets() []appsv1.ReplicaSet {
	list, err := c.client.AppsV1().ReplicaSets("default").List(c.ctx, metav1.ListOptions{})
	require.NoError(c, err)
	return list.Items
}

func (c *cluster) replicaSet(image string) *appsv1.ReplicaSet {
	for _, rs := range c.replicaSets() {
		if rs.Spec.Template.Spec.Containers[0].Image == image {
			return &rs
		}
	}
	return nil
}

func (c *cluster) pods() []corev1.Pod {
	list, err := c.client.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{})
	require.NoError(c, err)
	return list.Items
}

func image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = name }
}

func scale(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &n }
}

func (c *cluster) awaitEvent(reason, message string) {
	c.Helper()
	c.eventually("event "+reason+": "+message, func() bool {
		list, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{})
		require.NoError(c, err)
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, message) {
				return true
			}
		}
		return false
	})
}
