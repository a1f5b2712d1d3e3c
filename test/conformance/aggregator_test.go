//go:build e2e

package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var (
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	flunders    = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}
)

const wardle = "v1alpha1.wardle.example.com"

// aggregator-supports-the-sample-apiserver
func TestAggregator_SupportsTheSampleAPIServer(t *testing.T) {
	t.Parallel()
	if os.Getenv("KUBECONFIG") != "" {
		t.Skip("SKIPPED: the extension server listens on loopback, which another machine's API server does not reach")
	}
	c := connect(t)
	port := c.startSampleAPIServer()
	services := c.dynamic.Resource(apiServices)
	_, err := services.Create(c.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": wardle, "labels": map[string]any{"e2e": "wardle"}},
		"spec": map[string]any{
			"group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": int64(2000),
			"versionPriority": int64(200), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": c.namespace, "name": "sample-api", "port": int64(port)},
		}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.cleanup(func(ctx context.Context) error { return services.Delete(ctx, wardle, metav1.DeleteOptions{}) })
	require.Eventually(t, func() bool { return c.serviceCondition("Available") == "True" }, patience, tick)
	c.tryFlunders()
	c.changeAPIService()

	require.NoError(t, services.DeleteCollection(c.ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "e2e=wardle"}))
	require.Eventually(t, func() bool {
		_, err := c.dynamic.Resource(flunders).Namespace(c.namespace).List(c.ctx, metav1.ListOptions{})
		return err != nil
	}, patience, tick)
	groups, err := c.core.Discovery().ServerGroups()
	require.NoError(t, err)
	for _, g := range groups.Groups {
		require.NotEqual(t, "wardle.example.com", g.Name)
	}
}

// tryFlunders creates, reads, lists and deletes objects of the extension server.
func (c *cluster) tryFlunders() {
	objects := c.dynamic.Resource(flunders).Namespace(c.namespace)
	fresh := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "wardle.example.com/v1alpha1",
			"kind": "Flunder", "metadata": map[string]any{"generateName": "dynamic-flunder-",
				"labels": map[string]any{"dynamic-flunder": "true"}}, "spec": map[string]any{}, "status": map[string]any{}}}
	}
	for range 2 {
		created, err := objects.Create(c.ctx, fresh(), metav1.CreateOptions{})
		require.NoError(c.t, err)
		got, err := objects.Get(c.ctx, created.GetName(), metav1.GetOptions{})
		require.NoError(c.t, err)
		require.Equal(c.t, created.GetUID(), got.GetUID())
	}
	list, err := objects.List(c.ctx, metav1.ListOptions{LabelSelector: "dynamic-flunder=true"})
	require.NoError(c.t, err)
	require.Len(c.t, list.Items, 2)
	require.NoError(c.t, objects.Delete(c.ctx, list.Items[0].GetName(), metav1.DeleteOptions{}))
	require.NoError(c.t, objects.DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	list, err = objects.List(c.ctx, metav1.ListOptions{})
	require.NoError(c.t, err)
	require.Empty(c.t, list.Items)
	resources, err := c.core.Discovery().ServerResourcesForGroupVersion("wardle.example.com/v1alpha1")
	require.NoError(c.t, err)
	require.NotEmpty(c.t, resources.APIResources)
}

// changeAPIService reads, patches and replaces the APIService and its status.
func (c *cluster) changeAPIService() {
	services := c.dynamic.Resource(apiServices)
	patched, err := services.Patch(c.ctx, wardle, types.MergePatchType, []byte(`{"spec":{"versionPriority":400}}`),
		metav1.PatchOptions{})
	require.NoError(c.t, err)
	priority, _, err := unstructured.NestedInt64(patched.Object, "spec", "versionPriority")
	require.NoError(c.t, err)
	require.EqualValues(c.t, 400, priority)

	change := func(change func(*unstructured.Unstructured), subresources ...string) {
		require.Eventually(c.t, func() bool { // the server writes the status too
			s, err := services.Get(c.ctx, wardle, metav1.GetOptions{}, subresources...)
			require.NoError(c.t, err)
			change(s)
			_, err = services.Update(c.ctx, s, metav1.UpdateOptions{}, subresources...)
			return err == nil
		}, patience, tick)
	}
	condition := func(s *unstructured.Unstructured, kind string) {
		all, _, err := unstructured.NestedSlice(s.Object, "status", "conditions")
		require.NoError(c.t, err)
		require.NoError(c.t, unstructured.SetNestedSlice(s.Object, append(all, map[string]any{"type": kind,
			"status": "True", "reason": "E2E", "message": "Set from e2e test",
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}), "status", "conditions"))
	}
	change(func(s *unstructured.Unstructured) { condition(s, "StatusUpdated") }, "status")
	require.Equal(c.t, "True", c.serviceCondition("StatusUpdated"))
	require.Equal(c.t, "True", c.serviceCondition("Available"))
	change(func(s *unstructured.Unstructured) { s.SetLabels(map[string]string{"e2e": "wardle", "changed": "true"}) })
	found, err := services.List(c.ctx, metav1.ListOptions{LabelSelector: "changed=true"})
	require.NoError(c.t, err)
	require.Len(c.t, found.Items, 1)
	require.Equal(c.t, wardle, found.Items[0].GetName())
}

// serviceCondition returns the status of a condition of the APIService, or "".
func (c *cluster) serviceCondition(kind string) string {
	s, err := c.dynamic.Resource(apiServices).Get(c.ctx, wardle, metav1.GetOptions{}, "status")
	require.NoError(c.t, err)
	conditions, _, err := unstructured.NestedSlice(s.Object, "status", "conditions")
	require.NoError(c.t, err)
	for _, condition := range conditions {
		if condition := condition.(map[string]any); condition["type"] == kind {
			return condition["status"].(string)
		}
	}
	return ""
}

// startSampleAPIServer runs Kubernetes' sample-apiserver, with an etcd of its own, as a service account of the test's
// namespace, and returns its port.
func (c *cluster) startSampleAPIServer() int {
	c.t.Helper()
	account := c.delegator()
	client, peer, port := freePort(c.t), freePort(c.t), freePort(c.t)
	urlOf := func(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }
	dir := c.t.TempDir()
	c.background(filepath.Join(os.Getenv("COXSWAIN_BIN"), "coxswain"), "etcd", "--name=e", "--data-dir="+
		filepath.Join(dir, "etcd"), "--log-level=error", "--listen-client-urls="+urlOf(client), "--advertise-client-urls="+
		urlOf(client), "--listen-peer-urls="+urlOf(peer), "--initial-advertise-peer-urls="+urlOf(peer),
		"--initial-cluster=e="+urlOf(peer))
	c.background(filepath.Join(os.Getenv("EXTENSIONS"), "sample-apiserver"), "--bind-address=127.0.0.1",
		fmt.Sprint("--secure-port=", port), "--cert-dir="+dir, "--etcd-servers="+urlOf(client), "--kubeconfig="+account,
		"--authentication-kubeconfig="+account, "--authorization-kubeconfig="+account)
	_, err := c.core.CoreV1().Services(c.namespace).Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "sample-api"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	require.NoError(c.t, err)
	return port
}

// delegator creates a service account with the rights of an extension server, and returns a kubeconfig for it.
func (c *cluster) delegator() (path string) {
	c.t.Helper()
	subjects := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: c.namespace, Name: "default"}}
	own := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
	for group, resources := range map[string][]string{"": {"namespaces"}, "admissionregistration.k8s.io": {"*"},
		"flowcontrol.apiserver.k8s.io": {"*"}} {
		own.Rules = append(own.Rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources,
			Verbs: []string{"get", "list", "watch"}})
	}
	_, err := c.core.RbacV1().ClusterRoles().Create(c.ctx, own, metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.cleanup(func(ctx context.Context) error {
		return c.core.RbacV1().ClusterRoles().Delete(ctx, own.Name, metav1.DeleteOptions{})
	})
	for _, role := range []string{"system:auth-delegator", own.Name} {
		b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: c.namespace + ":" + role}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
		_, err := c.core.RbacV1().ClusterRoleBindings().Create(c.ctx, b, metav1.CreateOptions{})
		require.NoError(c.t, err)
		c.cleanup(func(ctx context.Context) error {
			return c.core.RbacV1().ClusterRoleBindings().Delete(ctx, b.Name, metav1.DeleteOptions{})
		})
	}
	reader := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role",
			Name: "extension-apiserver-authentication-reader"}}
	_, err = c.core.RbacV1().RoleBindings("kube-system").Create(c.ctx, reader, metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.cleanup(func(ctx context.Context) error {
		return c.core.RbacV1().RoleBindings("kube-system").Delete(ctx, reader.Name, metav1.DeleteOptions{})
	})
	var token *authenticationv1.TokenRequest
	require.Eventually(c.t, func() bool { // a controller creates the account
		token, err = c.core.CoreV1().ServiceAccounts(c.namespace).CreateToken(c.ctx, "default",
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		return err == nil
	}, patience, tick)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path = filepath.Join(c.t.TempDir(), "kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(*config, path))
	return path
}

// background runs a program until the end of the test. Its output is logged if the test fails.
func (c *cluster) background(program string, args ...string) {
	c.t.Helper()
	cmd := exec.Command(program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(c.t, cmd.Start(), "make extensions builds it")
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Logf("%s printed:\n%s", program, out.Bytes())
		}
	})
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}
