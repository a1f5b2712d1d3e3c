// Package controllertest holds the shared parts of controllers' tests. It is for tests only.
package controllertest

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
	"github.com/coxswain-dev/coxswain/testenv"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

// parallelTests is the number of tests that run in parallel, unless -parallel is set. They wait for watches
// and timers more than they compute. On two cores the Job controller's tests take 19 seconds with it, and 26
// with the default of two.
const parallelTests = "8"

// Main is the TestMain of a controller's tests: no test may leave a goroutine behind.
func Main(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		if err := flag.Set("test.parallel", parallelTests); err != nil {
			panic(err)
		}
	}
	leak.VerifyTestMain(m)
}

// Cluster is an API server with the processes that a test runs on it. Its methods use the namespace default
// unless they take a namespace.
type Cluster struct {
	testing.TB
	Client kubernetes.Interface // an administrator's, without faults
	Config *rest.Config         // the controllers' configuration
	Faults *Faults              // between the controllers and the API server
	// Wrap, if set, wraps the transport of each controller, between the faults and the API server.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Impersonate makes the user of Config impersonate the controllers' accounts. It is for a Config of a proxy
	// before the API server, which does not pass credentials on.
	Impersonate bool
	// Metrics has the metrics of the controllers that were started last.
	Metrics *prometheus.Registry
	// Began is the resourceVersion at the start of the test.
	Began string
}

// At returns the cluster of a configuration, without any controllers.
func At(t testing.TB, config *rest.Config) *Cluster {
	return &Cluster{TB: t, Client: newClient(config), Config: config, Faults: &Faults{}}
}

// NewBare starts an API server without any controllers.
func NewBare(t testing.TB) *Cluster {
	c := At(t, testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler()))
	c.Config = c.Faults.Between(c.Config)
	c.Began = c.Version()
	return c
}

// New starts the named controllers, or all, and waits for them. There is one Node, and its pods become ready if
// ready returns true; with nil no pod gets a node.
func New(t testing.TB, ready func(*corev1.Pod) bool, names ...string) *Cluster {
	c := NewBare(t)
	c.CreateNode(nodeName, nil)
	if len(names) == 0 { // the Node's Lease is not renewed
		names = []string{"*", "-node-lifecycle-controller", "-pod-garbage-collector-controller"}
	}
	c.StartControllers(controllers.Options{Controllers: names})
	if ready != nil {
		c.StartNode(ready)
	}
	return c
}

// NewControlPlane starts a whole control plane: API server, controllers, scheduler and 20 nodes.
func NewControlPlane(t testing.TB) *Cluster {
	c := At(t, testenv.Start(t, testenv.OrExternal(), testenv.WithNodes(20)))
	c.Eventually("the default namespace", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(c.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return c
}

// StartControllers starts controllers, each with its own identity, and returns when they are ready. They end
// with the test, or when stop is called; stop waits for them.
func (c *Cluster) StartControllers(o controllers.Options) (stop func()) {
	c.Metrics = prometheus.NewRegistry()
	o.Metrics = c.Metrics
	ready := make(chan struct{})
	o.Ready = func() { close(ready) }
	if o.Log == nil {
		var out io.Writer = io.Discard
		if testing.Verbose() {
			out = os.Stderr
		}
		o.Log = slog.New(slog.NewTextHandler(out, nil))
	}
	config, ended := c.asThemselves(&o), make(chan struct{})
	stop = c.Background(func(ctx context.Context) {
		defer close(ended)
		if err := controllers.Run(ctx, config, o); err != nil {
			c.Errorf("Run: %v", err)
		}
	})
	select {
	case <-ready:
	case <-ended:
		require.FailNow(c, "the controllers ended before they were ready")
	}
	return stop
}

// Background runs a function until the test ends or stop is called. stop waits for the function to return.
func (c *Cluster) Background(run func(ctx context.Context)) (stop func()) {
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

// Follow calls see with each event of a watch until the test ends. The test fails if the watch ends earlier.
func Follow[T runtime.Object](c *Cluster, changes watch.Interface, see func(watch.EventType, T)) {
	c.Background(func(ctx context.Context) {
		defer changes.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-changes.ResultChan():
				obj, ok := e.Object.(T)
				if c.Context().Err() != nil { // the test has ended, and with it the watch
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

// patience bounds the time that a test waits for a condition; interval is the time between two checks.
const (
	patience = 2 * time.Minute
	interval = 5 * time.Millisecond
)

// Eventually waits until f returns true. f runs on the caller's goroutine, so it may fail the test.
func (c *Cluster) Eventually(condition string, f func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !f(); <-time.After(interval) {
		if time.Now().After(end) {
			require.FailNow(c, "never: "+condition)
		}
	}
}

// AwaitMetric waits until the sum of the metric's series with these label values is n; see seriestest.Value.
func (c *Cluster) AwaitMetric(n float64, name string, labels ...string) {
	c.Helper()
	c.Eventually(fmt.Sprintf("%s%v is %v", name, labels, n), func() bool {
		return seriestest.Value(c, c.Metrics, name, labels...) == n
	})
}

// AwaitEvent waits for an Event with a reason and a text in its message.
func (c *Cluster) AwaitEvent(reason, message string) {
	c.Helper()
	c.Eventually("event "+reason+": "+message, func() bool {
		list, err := c.Client.CoreV1().Events("default").List(c.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, message) {
				return true
			}
		}
		return false
	})
}

// Edit changes an object as a user does, and repeats it on conflicts.
func Edit[T any](c *Cluster, objects interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}, name string, change func(T)) {
	c.Helper()
	edit(c, objects.Get, objects.Update, name, change)
}

// EditStatus is Edit for the subresource status.
func EditStatus[T any](c *Cluster, objects interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	UpdateStatus(context.Context, T, metav1.UpdateOptions) (T, error)
}, name string, change func(T)) {
	c.Helper()
	edit(c, objects.Get, objects.UpdateStatus, name, change)
}

func edit[T any](c *Cluster, get func(context.Context, string, metav1.GetOptions) (T, error),
	update func(context.Context, T, metav1.UpdateOptions) (T, error), name string, change func(T)) {
	c.Helper()
	c.Eventually("edit "+name, func() bool {
		obj, err := get(c.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		change(obj)
		_, err = update(c.Context(), obj, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			require.NoError(c, err)
		}
		return err == nil
	})
}
