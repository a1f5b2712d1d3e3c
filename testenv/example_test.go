package testenv_test

import (
	"context"
	"fmt"
	"log"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/coxswain-dev/coxswain/testenv"
)

// With client-go: a Deployment is created, and its pods start.
func Example() {
	config, stop, err := testenv.New()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	ctx := context.Background()
	clients := kubernetes.NewForConfigOrDie(config)
	if _, err := clients.AppsV1().Deployments("default").Create(ctx, deployment("web", 2),
		metav1.CreateOptions{}); err != nil {
		log.Fatal(err)
	}
	pods, err := clients.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		log.Fatal(err)
	}
	defer pods.Stop()
	ready := map[string]bool{}
	for len(ready) < 2 {
		pod := (<-pods.ResultChan()).Object.(*corev1.Pod)
		if pod.Status.Phase == corev1.PodRunning {
			ready[pod.Name] = true
		}
	}
	fmt.Println(len(ready), "pods run")
	// Output: 2 pods run
}

// With controller-runtime: a reconciler that gives every Deployment a ConfigMap of its own,
// under a real manager with a real cache.
func Example_controllerRuntime() {
	config, stop, err := testenv.New(testenv.WithNodes(0))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	mgr, err := ctrl.NewManager(config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		log.Fatal(err)
	}
	reconciled := make(chan string, 1)
	err = ctrl.NewControllerManagedBy(mgr).For(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).
		Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			var d appsv1.Deployment
			if err := mgr.GetClient().Get(ctx, r.NamespacedName, &d); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace}}
			_, err := ctrl.CreateOrUpdate(ctx, mgr.GetClient(), cm, func() error {
				cm.Data = map[string]string{"replicas": fmt.Sprint(*d.Spec.Replicas)}
				return controllerutil.SetControllerReference(&d, cm, mgr.GetScheme())
			})
			if err == nil {
				select {
				case reconciled <- cm.Data["replicas"]:
				default:
				}
			}
			return reconcile.Result{}, err
		}))
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	if err := mgr.GetClient().Create(ctx, deployment("web", 3)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("replicas:", <-reconciled)
	cancel()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output: replicas: 3
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
			},
		},
	}
}

// A write is stored, but its answer is lost: the client has to read the object to find out.
func ExampleEnvironment_Inject() {
	env, err := testenv.NewEnvironment(testenv.APIServerOnly())
	if err != nil {
		log.Fatal(err)
	}
	defer env.Stop()
	ctx, maps := context.Background(), kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")

	env.Inject(testenv.Fault{
		Match: testenv.Match{Verb: "create", Resource: "configmaps"},
		Err:   apierrors.NewTimeoutError("the request timed out", 0),
		After: true,
		Times: 1,
	})
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}
	_, err = maps.Create(ctx, settings, metav1.CreateOptions{})
	fmt.Println("first: ", err)
	_, err = maps.Create(ctx, settings, metav1.CreateOptions{})
	fmt.Println("second:", err)
	// Output:
	// first:  Timeout: the request timed out
	// second: configmaps "settings" already exists
}

// The summary counts a client's requests, and the writes among them that did not change their object.
func ExampleEnvironment_Calls() {
	env, err := testenv.NewEnvironment(testenv.APIServerOnly())
	if err != nil {
		log.Fatal(err)
	}
	defer env.Stop()
	ctx, maps := context.Background(), kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")

	settings, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}},
		metav1.CreateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 { // without a change
		if _, err := maps.Update(ctx, settings, metav1.UpdateOptions{}); err != nil {
			log.Fatal(err)
		}
	}
	calls := env.Calls(testenv.Match{Resource: "configmaps"})
	fmt.Println(calls.Writes().Count(), "writes,", calls.Useless().Count(), "for nothing")
	fmt.Print(calls.Summary())
	// Output:
	// 4 writes, 3 for nothing
	// USER               VERB     RESOURCE     CALLS   FAILED   CONFLICTS   USELESS
	// kubernetes-admin   update   configmaps   3       0        0           3
	// kubernetes-admin   create   configmaps   1       0        0           0
}

// An environment is prepared once for all tests, and each test begins with a fork of it.
func ExampleFromSnapshot() {
	ctx := context.Background()
	base, err := testenv.NewEnvironment(testenv.APIServerOnly())
	if err != nil {
		log.Fatal(err)
	}
	_, err = kubernetes.NewForConfigOrDie(base.Config).CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ready, err := base.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := base.Stop(); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		env, err := testenv.NewEnvironment(testenv.FromSnapshot(ready))
		if err != nil {
			log.Fatal(err)
		}
		shop := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("shop")
		_, err = shop.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
		fmt.Println("error:", err)
		if err := env.Stop(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// error: <nil>
	// error: <nil>
}
