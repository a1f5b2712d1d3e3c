//go:build e2e

package e2e

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// extension is an extension API server as a process of its own: it serves one group, delegates authentication and
// authorization to the API server, and has a certificate for its Service.
type extension struct {
	*process
	c       *cluster
	program string
	args    []string
	port    string
	ca      []byte
}

// extensionProgram returns the path of a program of `make extensions`.
func extensionProgram(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(cmp.Or(os.Getenv("EXTENSIONS"), "../../.tools"), name)
	_, err := os.Stat(program)
	require.NoError(t, err, "make extensions builds it")
	return program
}

// extend prepares an extension server that runs as a service account behind NAMESPACE/SERVICE. asFlag is its flag for
// the kubeconfig of the API server.
func (c *cluster) extend(program, asFlag, namespace, account, service string, args ...string) *extension {
	c.t.Helper()
	dir := certificates(c.t, service+"."+namespace+".svc")
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(c.t, err)
	kubeconfig := c.accountKubeconfig(namespace, account)
	port := freePort(c.t)
	return &extension{c: c, program: extensionProgram(c.t, program), port: port, ca: ca, args: append([]string{
		"--bind-address=127.0.0.1", "--secure-port=" + port, asFlag + "=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--tls-cert-file=" + filepath.Join(dir, "leaf.crt"), "--tls-private-key-file=" + filepath.Join(dir, "leaf.key"),
	}, args...)}
}

// accountKubeconfig writes a kubeconfig with a token of a service account.
func (c *cluster) accountKubeconfig(namespace, account string) string {
	c.t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		Token: strings.TrimSpace(c.run(kubectl, "create", "token", account, "-n", namespace))}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(c.t.TempDir(), account+".kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(*config, path))
	return path
}

func (e *extension) run() { e.process = startProgram(e.c.t, e.program, e.args...) }

// register creates the APIService, with a Service that leads to the process.
func (e *extension) register(group, version, namespace, service string) {
	e.c.t.Helper()
	e.c.run(kubectl, "apply", "-f", writeFile(e.c.t, "apiservice.yaml", fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %[2]s.%[1]s}
spec:
  group: %[1]s
  version: %[2]s
  groupPriorityMinimum: 1000
  versionPriority: 15
  caBundle: %[6]s
  service: {namespace: %[3]s, name: %[4]s, port: %[5]s}
`, group, version, namespace, service, e.port, base64.StdEncoding.EncodeToString(e.ca))))
}

// available waits for a status of the condition Available, and returns its reason and message.
func (c *cluster) available(apiService, status string) string {
	c.t.Helper()
	c.run(kubectl, "wait", "--for=condition=Available="+status, "apiservice/"+apiService, "--timeout=60s")
	return c.run(kubectl, "get", "apiservice", apiService, "-o",
		`jsonpath={.status.conditions[?(@.type=="Available")].reason}: {.status.conditions[?(@.type=="Available")].message}`)
}

// sampleAPIServer starts Kubernetes' sample-apiserver, with an etcd of its own, and waits until it is available.
func sampleAPIServer(c *cluster) *extension {
	c.t.Helper()
	e := startEtcd(c.t, false)
	c.run(kubectl, "apply", "-f", "testdata/extensions/server.yaml")
	server := c.extend("sample-apiserver", "--kubeconfig", "wardle", "apiserver", "api", e.flags...)
	server.run()
	server.register("wardle.example.com", "v1alpha1", "wardle", "api")
	c.available("v1alpha1.wardle.example.com", "True")
	return server
}

func TestExtensions_ServeFlundersLikeOtherObjects(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	sampleAPIServer(c)
	require.Contains(t, c.run(kubectl, "api-resources", "--api-group=wardle.example.com"),
		"flunders")
	require.Contains(t, c.run(kubectl, "explain", "flunder.spec"), "referenceType\t<string>")
	const manifest = "testdata/extensions/flunder.yaml"
	require.Equal(t, "flunder.wardle.example.com/my-first-flunder created\n", c.run(kubectl, "create", "-f", manifest))
	require.Contains(t, c.run(kubectl, "get", "flunders"), "my-first-flunder")
	require.Contains(t, c.run(kubectl, "get", "flunder", "my-first-flunder", "-o", "yaml"), "sample-label: \"true\"")
	watch := startProgram(t, kubectl, "--kubeconfig", c.kubeconfig, "get", "flunders", "--watch", "-o", "name")
	eventually(t, time.Minute, "the watch has begun", func() bool { return strings.Contains(watch.out.String(), "first") })
	require.Contains(t, c.run(kubectl, "apply", "--server-side", "--force-conflicts", "-f",
		writeFile(t, "second.yaml", "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: second}\n")),
		"second serverside-applied")
	eventually(t, time.Minute, "the watch shows it", func() bool { return strings.Contains(watch.out.String(), "second") })
	c.run(kubectl, "label", "flunder", "second", "a=b")
	require.Equal(t, "flunder.wardle.example.com/second\n", c.run(kubectl, "get", "flunders", "-l", "a=b", "-o", "name"))
	c.run(kubectl, "delete", "flunder", "second", "my-first-flunder")

	// Garbage collection works across servers, in both directions.
	c.run(kubectl, "create", "configmap", "owner")
	c.run(kubectl, "create", "-f", manifest)
	c.own("flunder/my-first-flunder", "v1", "ConfigMap", "configmap", "owner")
	c.run(kubectl, "create", "configmap", "owned")
	c.run(kubectl, "create", "-f", writeFile(t, "third.yaml",
		"apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: third}\n"))
	c.own("configmap/owned", "wardle.example.com/v1alpha1", "Flunder", "flunder", "third")
	c.run(kubectl, "delete", "configmap", "owner")
	c.run(kubectl, "delete", "flunder", "third")
	c.run(kubectl, "wait", "--for=delete", "flunder/my-first-flunder", "configmap/owned", "--timeout=60s")

	// Objects of the extension server are deleted with their namespace.
	c.run(kubectl, "create", "namespace", "brief")
	c.run(kubectl, "create", "-n", "brief", "-f", manifest)
	c.run(kubectl, "delete", "namespace", "brief", "--timeout=60s")
	c.run(kubectl, "create", "namespace", "brief")
	require.Empty(t, c.run(kubectl, "get", "flunders", "-n", "brief", "-o", "name"))
}

// own makes an object a dependent of another one.
func (c *cluster) own(dependent, apiVersion, kind, resource, name string) {
	c.t.Helper()
	uid := c.run(kubectl, "get", resource, name, "-o", "jsonpath={.metadata.uid}")
	c.run(kubectl, "patch", dependent, "--type=merge", "-p", fmt.Sprintf(
		`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q}]}}`, apiVersion, kind, name, uid))
}

// The API server authenticates and authorizes users, and the extension server trusts only it.
func TestExtensions_TrustOnlyTheAPIServer(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	server := sampleAPIServer(c)
	_, stderr, err := c.try(kubectl, "get", "flunders", "--as=jane")
	require.Error(t, err)
	require.Contains(t, stderr, `flunders.wardle.example.com is forbidden: User "jane" cannot list resource "flunders" `+
		`in API group "wardle.example.com" in the namespace "default"`)
	c.run(kubectl, "create", "role", "flunders", "--verb=get,list,create", "--resource=flunders.wardle.example.com")
	c.run(kubectl, "create", "rolebinding", "flunders", "--role=flunders", "--user=jane")
	c.run(kubectl, "create", "-f", "testdata/extensions/flunder.yaml", "--as=jane")
	require.Contains(t, c.run(kubectl, "get", "flunders", "--as=jane"), "my-first-flunder")

	const path = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders"
	jane, err := c.asAccount("jane")
	require.NoError(t, err)
	for name, address := range map[string]string{"through the API server": c.config.Host, "directly": "https://127.0.0.1:" +
		server.port} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
		require.NoError(t, err)
		r.Header.Set("X-Remote-User", "kubernetes-admin")
		r.Header.Set("X-Remote-Group", "system:masters")
		res, err := jane.Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusForbidden, res.StatusCode, name)
	}
}

// asAccount returns a client with the token of a new service account without rights; it does not verify certificates.
func (c *cluster) asAccount(name string) (*http.Client, error) {
	c.t.Helper()
	c.run(kubectl, "create", "serviceaccount", name)
	return rest.HTTPClientFor(&rest.Config{BearerToken: strings.TrimSpace(c.run(kubectl, "create", "token", name)),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
}

// An unavailable extension server only affects requests and work that need it; pending work continues when it is back.
func TestExtensions_OutagesAffectOnlyTheirGroup(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	server := sampleAPIServer(c)
	c.run(kubectl, "create", "namespace", "waiting")
	c.run(kubectl, "create", "-n", "waiting", "-f", "testdata/extensions/flunder.yaml")
	server.kill()
	require.Contains(t, c.available("v1alpha1.wardle.example.com", "False"), "FailedDiscoveryCheck: failing or missing "+
		"response from https://")
	_, stderr, err := c.try(kubectl, "get", "--raw", "/apis/wardle.example.com/v1alpha1/flunders")
	require.Error(t, err)
	require.Contains(t, stderr, "ServiceUnavailable")
	c.run(kubectl, "get", "all,namespaces")
	require.Contains(t, c.run(kubectl, "api-resources", "--api-group=apps"), "deployments")

	// Garbage collection works as before.
	c.run(kubectl, "create", "configmap", "owner")
	c.run(kubectl, "create", "configmap", "owned")
	c.own("configmap/owned", "v1", "ConfigMap", "configmap", "owner")
	c.run(kubectl, "delete", "configmap", "owner")
	c.run(kubectl, "wait", "--for=delete", "configmap/owned", "--timeout=60s")

	c.run(kubectl, "create", "configmap", "-n", "waiting", "other")
	c.run(kubectl, "delete", "namespace", "waiting", "--wait=false")
	c.run(kubectl, "wait", "--for=condition=NamespaceDeletionDiscoveryFailure", "namespace/waiting", "--timeout=60s")
	require.Contains(t, c.run(kubectl, "get", "namespace", "waiting", "-o", `jsonpath={.status.conditions[?(`+
		`@.type=="NamespaceDeletionDiscoveryFailure")].message}`), "Discovery failed for some groups, 1 failing: unable to "+
		"retrieve the complete list of server APIs: wardle.example.com/v1alpha1: stale GroupVersion discovery: "+
		"wardle.example.com/v1alpha1")
	require.Empty(t, c.run(kubectl, "get", "configmaps", "-n", "waiting", "-o", "name"), "all other objects are deleted")
	server.run()
	c.available("v1alpha1.wardle.example.com", "True")
	c.run(kubectl, "wait", "--for=delete", "namespace/waiting", "--timeout=60s")
}

// metrics-server replaces the API server's own metrics and scrapes the agents of the nodes itself. Deleting its
// APIService restores the API server's own metrics.
func TestExtensions_MetricsServerReplacesOurMetrics(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t))
	c.nodesReady(3)
	// metrics-server leaves out a Node without usage, so there are pods on each of them.
	c.run(kubectl, "create", "deployment", "web", "--image=web", "--replicas=6")
	c.run(kubectl, "rollout", "status", "deployment/web", "--timeout=60s")
	require.Contains(t, c.run(kubectl, "top", "nodes"), "node-0", "its own")
	c.run(kubectl, "apply", "-f", "testdata/extensions/metrics.yaml")
	server := c.extend("metrics-server", "--kubeconfig", "kube-system", "metrics-server", "metrics-server",
		"--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--kubelet-use-node-status-port", "--metric-resolution=10s",
		"--kubelet-request-timeout=5s")
	server.run()
	server.register("metrics.k8s.io", "v1beta1", "kube-system", "metrics-server")
	c.available("v1beta1.metrics.k8s.io", "True")
	eventually(t, 90*time.Second, "metrics-server has figures of two moments", func() bool {
		out, _, err := c.try(kubectl, "top", "nodes", "--no-headers")
		return err == nil && strings.Count(out, "node-") == 3 && !strings.Contains(out, "<unknown>")
	})
	require.Contains(t, c.run(kubectl, "top", "pods"), "web-")
	_, _, err := c.try(kubectl, "top", "nodes", "--as=jane")
	require.Error(t, err)

	server.kill()
	c.available("v1beta1.metrics.k8s.io", "False")
	_, _, err = c.try(kubectl, "top", "nodes")
	require.Error(t, err)
	c.run(kubectl, "delete", "apiservice", "v1beta1.metrics.k8s.io")
	eventually(t, time.Minute, "the API server answers again", func() bool {
		out, _, err := c.try(kubectl, "top", "nodes", "--no-headers")
		return err == nil && strings.Contains(out, "node-0")
	})
}

// An autoscaler follows a metric of an adapter, with the rights of the bootstrap policy.
func TestExtensions_AutoscalersUseMetricsOfAnAdapter(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "1")
	c.run(kubectl, "apply", "-f", "testdata/extensions/metrics.yaml") // the account and the Service work for any adapter
	server := c.extend("adapter", "--lister-kubeconfig", "kube-system", "metrics-server", "metrics-server")
	server.run()
	server.register("external.metrics.k8s.io", "v1beta1", "kube-system", "metrics-server")
	c.available("v1beta1.external.metrics.k8s.io", "True")
	c.run(kubectl, "create", "deployment", "web", "--image=web")
	c.run(kubectl, "apply", "-f", writeFile(t, "hpa.yaml", `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 5
  metrics:
  - type: External
    external:
      metric: {name: other-external-metric} # is 44
      target: {type: AverageValue, averageValue: "11"}
`))
	c.run(kubectl, "wait", "--for=jsonpath={.status.readyReplicas}=4", "deployment/web", "--timeout=90s")
	require.Contains(t, c.run(kubectl, "describe", "hpa", "web"),
		"New size: 4; reason: external metric other-external-metric(nil) above target")
}
