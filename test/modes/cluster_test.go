//go:build e2e && linux

package modes

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// cluster is a control plane that serves, and its clients.
type cluster struct {
	t      *testing.T
	dir    string // the server's data directory
	nodes  int
	config *rest.Config
	client kubernetes.Interface
	any    dynamic.Interface
	server *process
	// again starts the server another time, at the same address.
	again func() *process
	// others are further API servers of the control plane.
	others []kubernetes.Interface
}

// up runs `coxswain up`, with three simulated nodes unless the arguments say otherwise.
func up(t *testing.T, l launch, dir string, args ...string) *cluster {
	t.Helper()
	return serve(t, l, dir, append([]string{"up"}, args...)...)
}

// serve runs a command that serves the API from dir, on a port that it keeps when it is started again.
func serve(t *testing.T, l launch, dir string, args ...string) *cluster {
	t.Helper()
	return served(t, dir, args, func(args []string) *process { return l.start(t, args...) })
}

// served is like serve, for a command that start starts.
func served(t *testing.T, dir string, args []string, start func(args []string) *process) *cluster {
	t.Helper()
	host := "127.0.0.1"
	if i := slices.Index(args, "--bind-address"); i >= 0 {
		host = args[i+1]
	}
	args = append(args, "--data-dir", dir, "--secure-port", freePort(t, host))
	again := func() *process {
		p := start(args)
		p.prints(" serves ")
		return p
	}
	c := &cluster{t: t, dir: dir, nodes: 3, server: again(), again: again}
	var err error
	c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig("admin"))
	require.NoError(t, err)
	c.config.QPS = -1
	c.client, err = kubernetes.NewForConfig(c.config)
	require.NoError(t, err)
	c.any, err = dynamic.NewForConfig(c.config)
	require.NoError(t, err)
	return c
}

// on returns the same cluster for a subtest.
func (c *cluster) on(t *testing.T) *cluster {
	same := *c
	same.t = t
	return &same
}

func (c *cluster) kubeconfig(name string) string { return filepath.Join(c.dir, name+".kubeconfig") }

// components runs controllers, scheduler and nodes as processes of their own, and returns them.
func (c *cluster) components(args map[string][]string) map[string]*process {
	c.t.Helper()
	running := map[string]*process{}
	for _, name := range []string{"controllers", "scheduler", "node"} {
		command := append([]string{name, "--kubeconfig", c.kubeconfig(name), "--metrics-bind-address", "127.0.0.1:0"},
			args[name]...)
		if name == "node" {
			command = append(command, "--nodes", "3")
		}
		running[name] = launch{}.start(c.t, command...)
	}
	return running
}

// kubectl runs kubectl in a namespace and requires that it succeeds.
func (c *cluster) kubectl(namespace string, args ...string) string {
	c.t.Helper()
	out, err := c.tryKubectl(namespace, args...)
	require.NoError(c.t, err, "kubectl %s: %s", strings.Join(args, " "), out)
	return out
}

func (c *cluster) tryKubectl(namespace string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, kubectl, append([]string{"--kubeconfig", c.kubeconfig("admin"), "-n", namespace,
		"--cache-dir", filepath.Join(filepath.Dir(c.dir), "kubectl-cache")}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The resources that are waited for.
var (
	nodes       = corev1.SchemeGroupVersion.WithResource("nodes")
	pods        = corev1.SchemeGroupVersion.WithResource("pods")
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	jobs        = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	endpoints   = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	gadgets     = schema.GroupVersionResource{Group: "modes.example.com", Version: "v1", Resource: "gadgets"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
)

// await watches the objects of a resource until there are enough.
func (c *cluster) await(what string, gvr schema.GroupVersionResource, namespace string,
	enough func([]*unstructured.Unstructured) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	resource := c.any.Resource(gvr).Namespace(namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, o)
		},
		WatchFuncWithContext: resource.Watch,
	}
	var store cache.Store
	var last []*unstructured.Unstructured
	looks := func() (bool, error) {
		last = nil
		for _, o := range store.List() {
			last = append(last, o.(*unstructured.Unstructured))
		}
		return enough(last), nil
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &unstructured.Unstructured{},
		func(s cache.Store) (bool, error) { store = s; return looks() },
		func(watch.Event) (bool, error) { return looks() })
	require.NoError(c.t, err, "%s: there are %v", what, last)
}

// awaitGone waits until no object of a resource is left in a namespace.
func (c *cluster) awaitGone(gvr schema.GroupVersionResource, namespace string) {
	c.t.Helper()
	c.await("no "+gvr.Resource+" are left", gvr, namespace,
		func(left []*unstructured.Unstructured) bool { return len(left) == 0 })
}

// nodesReady waits until all Nodes are Ready.
func (c *cluster) nodesReady() {
	c.t.Helper()
	c.await("all Nodes are Ready", nodes, "", func(all []*unstructured.Unstructured) bool {
		ready := 0
		for _, node := range all {
			if condition(node, "Ready") == "True" {
				ready++
			}
		}
		return ready == c.nodes
	})
}

// awaitDeployment waits until a Deployment has so many replicas, all of its newest template and available.
func (c *cluster) awaitDeployment(namespace, name string, replicas int64) {
	c.t.Helper()
	c.await("the Deployment is rolled out", deployments, namespace, func(all []*unstructured.Unstructured) bool {
		for _, d := range all {
			if d.GetName() != name || number(d, "status", "observedGeneration") != d.GetGeneration() {
				continue
			}
			return number(d, "status", "replicas") == replicas && number(d, "status", "updatedReplicas") == replicas &&
				number(d, "status", "availableReplicas") == replicas
		}
		return false
	})
}

// runsPod waits until a new pod runs. It repeats a request whose outcome the server does not know.
func (c *cluster) runsPod(name string) {
	c.t.Helper()
	create := []string{"run", name, "--image=pod:1", "--restart=Never", "--annotations=sim.coxswain.dev/run-for=forever"}
	out, err := c.tryKubectl("default", create...)
	for err != nil && strings.Contains(out, "it may or may not have happened") {
		if out, err = c.tryKubectl("default", create...); strings.Contains(out, "AlreadyExists") {
			err = nil
		}
	}
	require.NoError(c.t, err, out)
	c.await("the pod runs", pods, "default", func(all []*unstructured.Unstructured) bool {
		for _, pod := range all {
			phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
			if pod.GetName() == name && phase == string(corev1.PodRunning) {
				return true
			}
		}
		return false
	})
}

// number returns a number of an object, 0 if there is none.
func number(o *unstructured.Unstructured, path ...string) int64 {
	n, _, _ := unstructured.NestedInt64(o.Object, path...)
	return n
}

// condition returns the status of a condition, "" if there is none.
func condition(o *unstructured.Unstructured, kind string) string {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if one, ok := c.(map[string]any); ok && one["type"] == kind {
			status, _ := one["status"].(string)
			return status
		}
	}
	return ""
}

// protocol returns the protocol of the server's answers, such as HTTP/2.0.
func (c *cluster) protocol() string {
	c.t.Helper()
	client, err := rest.HTTPClientFor(c.config)
	require.NoError(c.t, err)
	client.Timeout = time.Minute
	response, err := client.Get(c.config.Host + "/readyz")
	require.NoError(c.t, err)
	defer response.Body.Close()
	require.Equal(c.t, http.StatusOK, response.StatusCode)
	return response.Proto
}
