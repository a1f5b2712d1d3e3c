package testenv

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

// ExternalVariable is the environment variable that names the kubeconfig of another API server.
const ExternalVariable = "COXSWAIN_TEST_KUBECONFIG"

// OrExternal uses the API server whose kubeconfig ExternalVariable names, a kube-apiserver for example, if the
// variable is set. The other parts that were requested run beside it. Options of the API server itself have no
// effect on it.
//
// Such a server must run alone with etcd, and its user must be allowed to do everything, since the parts and the
// test change all its objects. It belongs to one test at a time, and each test begins with it empty. A second
// control plane in one test would therefore wait for ever. A server that has Nodes or pods, and was not emptied by
// a test before, is not touched: that is an error.
func OrExternal() Option { return func(o *options) { o.external = os.Getenv(ExternalVariable) } }

// theExternal is held by the test that uses the external server.
var theExternal sync.Mutex

// marker is the ConfigMap, in kube-system, that marks a server as one for tests.
const marker = "coxswain-testenv"

// takeExternal is startServer for an external server.
func (e *Environment) takeExternal() (end func(), err error) {
	theExternal.Lock()
	defer func() {
		if err != nil {
			theExternal.Unlock()
		}
	}()
	config, err := clientcmd.BuildConfigFromFlags("", e.options.external)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ExternalVariable, err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("%s: %w", ExternalVariable, err)
	}
	config.QPS = -1
	x, err := newExternal(config)
	if err != nil {
		return nil, err
	}
	if err := x.claim(e.ctx); err != nil {
		return nil, err
	}
	if err := x.empty(e.ctx); err != nil {
		return nil, err
	}
	e.users = &users{host: config.Host, external: config}
	var running sync.WaitGroup
	running.Go(func() { x.untaint(e.ctx) })
	return func() {
		running.Wait()
		// The next test empties it again; this run only cleans up for people who look at the server.
		_ = x.empty(context.Background())
		utilnet.CloseIdleConnectionsFor(x.transport)
		theExternal.Unlock()
	}, nil
}

type external struct {
	client    kubernetes.Interface
	metadata  metadata.Interface
	transport http.RoundTripper // the connections of all clients of the server
}

func newExternal(config *rest.Config) (*external, error) {
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(config, shared)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), shared)
	return &external{client, objects, shared.Transport}, err
}

// claim checks that the server is one for tests, and marks it.
func (x *external) claim(ctx context.Context) error {
	maps := x.client.CoreV1().ConfigMaps("kube-system")
	_, err := maps.Get(ctx, marker, metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	nodes, err := x.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	pods, err := x.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if len(nodes.Items)+len(pods.Items) > 0 {
		return fmt.Errorf("the server that %s names has Nodes or pods: tests would delete them", ExternalVariable)
	}
	_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: marker}}, metav1.CreateOptions{})
	return err
}

// clusterScoped are the cluster-scoped kinds that are emptied, except for the objects that isSystem reports.
var clusterScoped = []schema.GroupVersionResource{
	{Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "persistentvolumes"},
	{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"},
	{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}, {Group: "storage.k8s.io", Version: "v1",
		Resource: "csinodes"},
	{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
}

// systemNamespaces remain; only default, and the Leases of the others, are emptied.
var systemNamespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

// kept reports whether an object is the API server's own, or is created in each namespace.
func isSystem(gvr schema.GroupVersionResource, name string) bool {
	switch gvr.Resource {
	case "services", "endpoints", "endpointslices", "servicecidrs":
		return name == "kubernetes"
	case "serviceaccounts":
		return name == "default"
	case "configmaps":
		return name == "kube-root-ca.crt"
	case "leases": // the Leases of API servers
		return strings.HasPrefix(name, "apiserver-")
	}
	return false
}

// empty deletes the objects of tests and waits until they are gone.
func (x *external) empty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	namespaced, err := x.namespaced()
	if err != nil {
		return err
	}
	for {
		left, err := x.sweep(ctx, namespaced)
		if err != nil {
			return fmt.Errorf("empty the server that %s names: %w", ExternalVariable, err)
		}
		if left == 0 {
			break
		}
	}
	// Pods are not admitted without this account, and its controller may not run.
	_, err = x.client.CoreV1().ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// namespaced returns the namespaced kinds that can be listed and deleted.
func (x *external) namespaced() ([]schema.GroupVersionResource, error) {
	lists, err := x.client.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		return nil, err
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists)
	byResource, err := discovery.GroupVersionResources(lists)
	if err != nil {
		return nil, err
	}
	var all []schema.GroupVersionResource
	for gvr := range byResource {
		if gvr.Resource != "events" || gvr.Group == "" { // one store behind two groups
			all = append(all, gvr)
		}
	}
	return all, nil
}

// sweep requests the deletion of all objects that must go, and returns how many still existed.
func (x *external) sweep(ctx context.Context, namespaced []schema.GroupVersionResource) (left int, err error) {
	sweep := func(gvr schema.GroupVersionResource, namespace string) error {
		n, err := x.sweepKind(ctx, gvr, namespace)
		left += n
		return err
	}
	namespaces, err := x.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		if system := slices.Contains(systemNamespaces, ns.Name); system && ns.Name != "default" {
			if err := sweep(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1",
				Resource: "leases"}, ns.Name); err != nil {
				return 0, err
			}
			continue
		}
		for _, gvr := range namespaced {
			if err := sweep(gvr, ns.Name); err != nil {
				return 0, err
			}
		}
		if ns.Name != "default" {
			left++
			if err := x.finalize(ctx, ns); err != nil {
				return 0, err
			}
		}
	}
	for _, gvr := range clusterScoped {
		if err := sweep(gvr, ""); err != nil {
			return 0, err
		}
	}
	return left, nil
}

// finalize ends a namespace itself, since the namespace controller may not run.
func (x *external) finalize(ctx context.Context, ns *corev1.Namespace) error {
	err := x.client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{})
	if err == nil {
		if ns, err = x.client.CoreV1().Namespaces().Get(ctx, ns.Name, metav1.GetOptions{}); err == nil {
			ns.Spec.Finalizers = nil
			_, err = x.client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
		}
	}
	return unlessOvertaken(err)
}

func (x *external) sweepKind(ctx context.Context, gvr schema.GroupVersionResource,
	namespace string) (left int, err error) {
	objects := x.metadata.Resource(gvr).Namespace(namespace)
	list, err := objects.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) { // not every server has every kind
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		obj := &list.Items[i]
		if isSystem(gvr, obj.Name) {
			continue
		}
		left++
		if len(obj.Finalizers) > 0 {
			_, err := objects.Patch(ctx, obj.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
				metav1.PatchOptions{})
			if err := unlessOvertaken(err); err != nil {
				return 0, err
			}
		}
		o := *metav1.NewDeleteOptions(0)
		o.PropagationPolicy = new(metav1.DeletePropagationBackground)
		if err := unlessOvertaken(objects.Delete(ctx, obj.Name, o)); err != nil {
			return 0, fmt.Errorf("%s %s: %w", gvr.Resource, obj.Name, err)
		}
	}
	return left, nil
}

// unlessOvertaken drops the errors of deletions that another client has done before.
func unlessOvertaken(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// untaint removes the not-ready taint with which the server admits each new Node. It replaces the controller that
// does so, which may not run: see undone.
func (x *external) untaint(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := x.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		for e := range w.ResultChan() {
			if node, ok := e.Object.(*corev1.Node); ok && e.Type == watch.Added {
				_ = x.untaintNode(ctx, node.Name) // fails if the Node has been deleted, or the test has ended
			}
		}
	}
}

func (x *external) untaintNode(ctx context.Context, name string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := x.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := len(node.Spec.Taints)
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeNotReady
		})
		if len(node.Spec.Taints) == n {
			return nil
		}
		_, err = x.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}
