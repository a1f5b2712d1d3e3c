package controllers_test

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

// The benchmarks measure a control plane in one process: API server, etcd and controllers together.
//
//	go test ./controllers -run - -bench 'Namespace|Endpoints' -benchtime 1x

const many = 5000

// measured is a control plane with all controllers and without nodes.
type measured struct{ *controllertest.Cluster }

func newMeasured(b *testing.B) measured {
	config := testenv.Start(b, testenv.WithControllers("*", "-node-lifecycle-controller",
		"-pod-garbage-collector-controller"),
		testenv.WithNodes(0), testenv.WithoutScheduler())
	return measured{controllertest.At(b, config)}
}

// cost reports the resources that f takes: CPU of the process, and writes to etcd.
func (c measured) cost(b *testing.B, unit string, n int, f func()) {
	cpu := func() time.Duration {
		var r syscall.Rusage
		require.NoError(c, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	revision := func() int {
		list, err := c.Client.CoreV1().Namespaces().List(c.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		revision, err := strconv.Atoi(list.ResourceVersion)
		require.NoError(c, err)
		return revision
	}
	before, first, start := cpu(), revision(), time.Now()
	f()
	b.ReportMetric(time.Since(start).Seconds(), "s")
	b.ReportMetric((cpu() - before).Seconds(), "cpu-s")
	b.ReportMetric(float64(revision()-first)/float64(n), "writes/"+unit)
}

// all calls f for 0 to n-1, many calls at once.
func (c measured) all(n int, f func(i int) error) {
	errs := make([]error, n)
	controller.InParallel(n, func(i int) { errs[i] = f(i) })
	require.NoError(c, controller.FirstError(errs...))
}

func BenchmarkNamespace_DeleteWith5000Objects(b *testing.B) {
	for b.Loop() {
		c := newMeasured(b)
		_, err := c.Client.CoreV1().Namespaces().Create(c.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, metav1.CreateOptions{})
		require.NoError(b, err)
		c.all(many, func(i int) error {
			meta := metav1.ObjectMeta{Name: fmt.Sprintf("o-%d", i)}
			var err error
			switch i % 3 {
			case 0:
				_, err = c.Client.CoreV1().ConfigMaps("full").Create(c.Context(), &corev1.ConfigMap{ObjectMeta: meta},
					metav1.CreateOptions{})
			case 1:
				_, err = c.Client.CoreV1().Secrets("full").Create(c.Context(), &corev1.Secret{ObjectMeta: meta},
					metav1.CreateOptions{})
			default:
				_, err = c.Client.CoreV1().Pods("full").Create(c.Context(),
					&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
						AutomountServiceAccountToken: new(false),
						Containers:                   []corev1.Container{{Name: "c", Image: "i"}},
					}}, metav1.CreateOptions{})
			}
			return err
		})
		c.cost(b, "object", many, func() {
			require.NoError(b, c.Client.CoreV1().Namespaces().Delete(c.Context(), "full", metav1.DeleteOptions{}))
			c.Eventually("the namespace is gone", func() bool {
				_, err := c.Client.CoreV1().Namespaces().Get(c.Context(), "full", metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
		})
	}
}

// ready sets the readiness of a pod of the Service web.
func (c measured) ready(i int, status corev1.ConditionStatus) error {
	patch := controllertest.JSON(map[string]any{"status": map[string]any{
		"phase": "Running", "podIP": fmt.Sprintf("10.0.%d.%d", i/250, i%250+1),
		"conditions": []any{map[string]any{"type": "Ready", "status": status, "lastTransitionTime": metav1.Now()}},
	}})
	_, err := c.Client.CoreV1().Pods("default").Patch(c.Context(), fmt.Sprintf("web-%d", i),
		"application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, "status")
	return err
}

func BenchmarkEndpoints_ServiceOf5000UnderChurn(b *testing.B) {
	for b.Loop() {
		c := newMeasured(b)
		_, err := c.Client.CoreV1().Nodes().Create(c.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
			metav1.CreateOptions{})
		require.NoError(b, err)
		c.Eventually("the account of the pods", func() bool {
			_, err := c.Client.CoreV1().ServiceAccounts("default").Get(c.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
		labels := map[string]string{"app": "web"}
		c.all(many, func(i int) error {
			_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Labels: labels},
				Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			return c.ready(i, corev1.ConditionTrue)
		})
		count := func(ready bool) int {
			list, err := c.Client.DiscoveryV1().EndpointSlices("default").List(c.Context(),
				metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			require.NoError(b, err)
			n := 0
			for _, s := range list.Items {
				for _, e := range s.Endpoints {
					if *e.Conditions.Ready == ready {
						n++
					}
				}
			}
			return n
		}
		_, err = c.Client.CoreV1().Services("default").Create(c.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: labels,
				Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		require.NoError(b, err)
		c.Eventually("all are told", func() bool { return count(true) == many })
		const churn = 1000
		c.cost(b, "change", churn, func() {
			c.all(churn, func(i int) error { return c.ready(i*many/churn, corev1.ConditionFalse) })
			c.Eventually("those not ready are told", func() bool { return count(false) == churn })
		})
	}
}
