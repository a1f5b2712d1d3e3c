//go:build e2e && linux

package modes

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// parts are parts of the smoke test. Each works in a namespace, and on its own.
type parts map[string]func(c *cluster, namespace string)

// simpleParts take few writes, one after the other; rollout takes many.
var (
	simpleParts = parts{"custom resources": (*cluster).custom, "webhook": (*cluster).webhook, "job": (*cluster).job,
		"secret": (*cluster).secret}
	rollout = parts{"deployment": (*cluster).deployment}
)

// smoke does all parts in a namespace that is deleted at the end.
func (c *cluster) smoke(namespace string) {
	c.t.Helper()
	c.nodesReady()
	c.kubectl("default", "create", "namespace", namespace)
	c.do(namespace, simpleParts, rollout)
	c.end(namespace)
}

// do does parts of the smoke test at the same time.
func (c *cluster) do(namespace string, all ...parts) {
	c.t.Helper()
	c.t.Run("parts", func(t *testing.T) {
		for _, some := range all {
			for name, part := range some {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					part(c.on(t), namespace)
				})
			}
		}
	})
}

// end deletes a namespace with all that is in it.
func (c *cluster) end(namespace string) {
	c.t.Helper()
	c.kubectl("default", "delete", "namespace", namespace)
	c.awaitGone(pods, namespace)
	require.True(c.t, c.server.running(), "the server has ended: %s", c.server.out.String())
}

// deployment creates, scales, rolls and deletes one behind a Service.
func (c *cluster) deployment(namespace string) {
	c.kubectl(namespace, "apply", "-f", "testdata/web.yaml")
	c.awaitDeployment(namespace, "web", 2)
	c.awaitEndpoints(namespace, 2)
	c.kubectl(namespace, "scale", "deployment/web", "--replicas=3")
	c.awaitEndpoints(namespace, 3)
	c.kubectl(namespace, "set", "image", "deployment/web", "web=web:2")
	c.awaitDeployment(namespace, "web", 3)
	require.NoError(c.t, c.client.AppsV1().Deployments(namespace).Delete(c.t.Context(), "web", metav1.DeleteOptions{}))
	c.await("the pods are gone", pods, namespace, func(left []*unstructured.Unstructured) bool {
		for _, pod := range left {
			if pod.GetLabels()["app"] == "web" {
				return false
			}
		}
		return true
	})
	c.awaitEndpoints(namespace, 0)
}

// awaitEndpoints waits until so many pods are ready behind the Service.
func (c *cluster) awaitEndpoints(namespace string, n int) {
	c.t.Helper()
	c.await("the Service has its endpoints", endpoints, namespace, func(all []*unstructured.Unstructured) bool {
		ready := map[string]bool{}
		for _, slice := range all {
			list, _, _ := unstructured.NestedSlice(slice.Object, "endpoints")
			for _, e := range list {
				endpoint := e.(map[string]any)
				target, _, _ := unstructured.NestedString(endpoint, "targetRef", "name")
				if is, _, _ := unstructured.NestedBool(endpoint, "conditions", "ready"); is {
					ready[target] = true
				}
			}
		}
		return len(ready) == n
	})
}

// custom defines a kind, and creates a valid object of it and one that is not.
func (c *cluster) custom(namespace string) {
	c.kubectl(namespace, "apply", "-f", "testdata/gadgets.yaml")
	c.kubectl(namespace, "wait", "--for=condition=Established", "crd/gadgets.modes.example.com",
		"--timeout="+patience.String())
	gadget := func(name string, size any) error {
		_, err := c.any.Resource(gadgets).Namespace(namespace).Create(c.t.Context(), &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": "modes.example.com/v1", "kind": "Gadget",
				"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": size}}}, metav1.CreateOptions{})
		return err
	}
	require.NoError(c.t, gadget("small", int64(1)))
	err := gadget("huge", int64(1000))
	require.True(c.t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(c.t, err, "spec.size")
	require.NoError(c.t, c.any.Resource(definitions).Delete(c.t.Context(), "gadgets.modes.example.com",
		metav1.DeleteOptions{}))
	c.awaitGone(definitions, "")
}

// webhook registers a validating webhook that refuses ConfigMaps of one name.
func (c *cluster) webhook(namespace string) {
	hook := sharedRefuser()
	hooks := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	none := admissionregistrationv1.SideEffectClassNone
	scope := admissionregistrationv1.NamespacedScope
	_, err := hooks.Create(c.t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:         "refuser.modes.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook.url, CABundle: hook.ca},
			NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"configmaps"}, Scope: &scope},
			}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	before := hook.calls.Load()
	create := func(name string) error {
		_, err := c.client.CoreV1().ConfigMaps(namespace).Create(c.t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	require.ErrorContains(c.t, create("refused"), `admission webhook "refuser.modes.example.com" denied the request`)
	require.NoError(c.t, create("accepted"))
	require.Greater(c.t, hook.calls.Load(), before)
	require.NoError(c.t, hooks.Delete(c.t.Context(), namespace, metav1.DeleteOptions{}))
	require.NoError(c.t, create("refused"))
}

// refuser is a webhook that all modes share.
type refuser struct {
	url   string
	ca    []byte
	calls atomic.Int64
}

// sharedRefuser refuses objects with the name "refused", until the program ends.
var sharedRefuser = sync.OnceValue(func() *refuser {
	hook := &refuser{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hook.calls.Add(1)
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID,
			Allowed: review.Request.Name != "refused"}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	hook.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	hook.url = server.URL
	return hook
})

// job runs one to its end.
func (c *cluster) job(namespace string) {
	c.kubectl(namespace, "apply", "-f", "testdata/job.yaml")
	c.await("the Job is complete", jobs, namespace, func(all []*unstructured.Unstructured) bool {
		return len(all) == 1 && condition(all[0], "Complete") == "True" && number(all[0], "status", "succeeded") == 1
	})
}

// planted is the value of the Secret.
const planted = "planted-plaintext"

func (c *cluster) secret(namespace string) {
	c.kubectl(namespace, "create", "secret", "generic", "planted", "--from-literal=a="+planted)
	s, err := c.client.CoreV1().Secrets(namespace).Get(c.t.Context(), "planted", metav1.GetOptions{})
	require.NoError(c.t, err)
	require.Equal(c.t, planted, string(s.Data["a"]))
}

// resumes watches ConfigMaps while the server is killed and started again. The watch goes on where it was,
// with each change once and in order. Where there are other API servers, the watch goes on at each in turn.
func (c *cluster) resumes() {
	list, err := c.client.CoreV1().ConfigMaps("default").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	servers := append([]kubernetes.Interface{c.client}, c.others...)
	opened := 0
	watcher, err := watchtools.NewRetryWatcherWithContext(c.t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			server := servers[opened%len(servers)]
			opened++
			return server.CoreV1().ConfigMaps("default").Watch(ctx, o)
		},
	})
	require.NoError(c.t, err)
	defer watcher.Stop()
	const each = 3
	made, seen, last := 0, map[string]bool{}, int64(0)
	expect := func() {
		c.t.Helper()
		for range each {
			event := watch.Event{}
			select {
			case event = <-watcher.ResultChan():
			case <-time.After(patience):
			}
			require.Equal(c.t, watch.Added, event.Type, "%v", event.Object)
			o := event.Object.(*corev1.ConfigMap)
			revision, err := strconv.ParseInt(o.ResourceVersion, 10, 64)
			require.NoError(c.t, err)
			require.Greater(c.t, revision, last, "in order, and each once")
			last, seen[o.Name] = revision, true
		}
	}
	create := func() {
		c.t.Helper()
		errs := make(chan error, each)
		for range each {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", made)}}
			made++
			go func() {
				_, err := c.client.CoreV1().ConfigMaps("default").Create(c.t.Context(), m, metav1.CreateOptions{})
				errs <- err
			}()
		}
		for range each {
			require.NoError(c.t, <-errs)
		}
	}
	create()
	expect()
	create() // these may or may not have been sent when the server is killed
	c.server.kill()
	c.server = c.again()
	create()
	expect()
	expect()
	require.Len(c.t, seen, made)
	c.nodesReady()
}
