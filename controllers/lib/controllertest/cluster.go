// Package controllertest is what the tests of controllers have in common. It is for tests only.
//
// New gives a test an API server of its own, on which controllers run as they do in a cluster: each with the rights of
// its own account, and a request that RBAC refuses fails the test. NewClocked does the same in time that the test
// moves. Most tests then create objects and wait for what should become of them:
//
//	func TestDeployment_Scales(t *testing.T) {
//		t.Parallel()
//		c := controllertest.New(t, controllertest.Always, "deployment", "replicaset")
//		c.Deploy("web", 2, nil)
//		c.AwaitRollout("web")
//		...
//	}
//
// The tour:
//
//	cluster.go    Cluster: an API server, controllers, and how a test waits
//	clocked.go    Clocked: the same in time that is moved by hand
//	node.go       nodes that the test plays itself, and their pods
//	identity.go   each controller acts as itself; Signing has the control plane's keys
//	faults.go     Faults: refused writes, late caches, and caches that stand still
//	namesake.go   Replace: another object of the same name
//	fakeenv/      one controller on client-go's clientset for tests
//	extensions.go Extensions: groups of other servers that are away
//	history.go    every state that was ever stored, in order
//	walk.go       Walk: random changes, restarts and kills while a promise is checked
//	client.go     the test's own client
//	random.go     seeds and lengths of random tests
//	apps.go, jobs.go, objects.go, volumes.go
//	              objects that the tests of several controllers make
//
// Helpers that only one controller's tests use are with these. A test waits for what it then checks: a status, an
// owner and an event are written one after the other, and to have seen one of them says nothing of the others.
package controllertest

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

// atOnce is how many tests run at once, unless -parallel is given: they wait for watches and timers more than they
// compute. On two cores the Job controller's take 19 seconds so, and 26 with the default of two.
const atOnce = "8"

// Main is the TestMain of a controller's tests: no test may leave a goroutine behind.
func Main(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	leak.VerifyTestMain(m)
}

// Cluster is an API server and what a test runs on it. Its objects are in the namespace default unless a method has
// another.
type Cluster struct {
	testing.TB
	Client kubernetes.Interface // the administrator's, past the faults
	Config *rest.Config         // what the controllers use
	Faults *Faults              // between the controllers and the API server
	// Wrap, where a test sets it, is a transport of each controller, between the faults and the API server.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Impersonate has the controllers' identities impersonated by the user of Config: for a Config of another server,
	// which stands before the API server.
	Impersonate bool
	// Began is the version of all there was before the test.
	Began string
}

// At is the cluster of a configuration, on which nothing runs yet.
func At(t testing.TB, config *rest.Config) *Cluster {
	return &Cluster{TB: t, Client: newClient(config), Config: config, Faults: &Faults{}}
}

// NewBare is an API server on which nothing runs yet.
func NewBare(t testing.TB) *Cluster {
	c := At(t, testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler()))
	c.Config = c.Faults.Between(c.Config)
	c.Began = c.Version()
	return c
}

// New starts the named controllers, or all, and waits for them. There is one Node, whose pods get ready if ready says
// so; nil leaves all pods without a node.
func New(t testing.TB, ready func(*corev1.Pod) bool, names ...string) *Cluster {
	c := NewBare(t)
	c.CreateNode(nodeName, nil)
	if len(names) == 0 { // Nothing renews the Node's Lease.
		names = []string{"*", "-node-lifecycle-controller", "-pod-garbage-collector-controller"}
	}
	c.StartControllers(controllers.Options{Controllers: names})
	if ready != nil {
		c.StartNode(ready)
	}
	return c
}

// NewControlPlane is a whole control plane: API server, controllers, scheduler and 20 nodes.
func NewControlPlane(t testing.TB) *Cluster {
	c := At(t, testenv.Start(t, testenv.OrExternal(), testenv.WithNodes(20)))
	c.Eventually("the default namespace", func() bool {
		_, err := c.Client.CoreV1().Namespaces().Get(c.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return c
}

// StartControllers runs controllers, each as itself, and returns when they are ready. They end with the test, or when
// stop is called; then stop waits for them.
func (c *Cluster) StartControllers(o controllers.Options) (stop func()) {
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

// Background runs a function until the test ends or stop is called, which waits for it.
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

// Follow calls see with each change of a watch, until the test ends. A watch that ends before fails it.
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

// patience is how long a test waits for what must happen, interval how often it looks.
const (
	patience = 2 * time.Minute
	interval = 5 * time.Millisecond
)

// Eventually waits until f holds. f runs in the caller's goroutine: it may fail the test.
func (c *Cluster) Eventually(what string, f func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !f(); <-time.After(interval) {
		if time.Now().After(end) {
			require.FailNow(c, "never: "+what)
		}
	}
}

// AwaitEvent waits for an Event with a reason whose message contains a text.
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

// Edit changes an object as a user does, again where somebody else was faster.
func Edit[T any](c *Cluster, objects interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}, name string, change func(T)) {
	c.Helper()
	edit(c, objects.Get, objects.Update, name, change)
}

// EditStatus is Edit for what is below status.
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
