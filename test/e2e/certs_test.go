//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// certs runs `coxswain certs` and requires that it succeeds.
func certs(t *testing.T, args ...string) string {
	t.Helper()
	p := start(t, append([]string{"certs"}, args...)...)
	p.waitExit(30 * time.Second)
	require.NoError(t, p.err, p.out.String())
	return p.out.String()
}

// TestCerts_RunAControlPlaneOfSeparateProcesses starts etcd, API server, controllers, scheduler and nodes as processes
// that share only the output of `coxswain certs`, each with its own files and no others. Only the controllers can read
// the CA's key.
func TestCerts_RunAControlPlaneOfSeparateProcesses(t *testing.T) {
	t.Parallel()
	made := dataDir(t)
	port := freePort(t)
	server := "https://127.0.0.1:" + port
	all := []string{"--data-dir", made, "--server", server, "--nodes", "1", "--node-prefix", "rack1-,rack2-,rack3-"}
	certs(t, all...)
	require.Contains(t, certs(t, all...), "nothing was changed")
	in := func(name string) string { return filepath.Join(made, "pki", name) }

	client, peer := "https://127.0.0.1:"+freePort(t), "https://127.0.0.1:"+freePort(t)
	metrics := "http://127.0.0.1:" + freePort(t)
	start(t, "etcd", "--name", "e", "--data-dir", dataDir(t), "--log-level", "error", "--listen-metrics-urls", metrics,
		"--listen-client-urls", client, "--advertise-client-urls", client, "--client-cert-auth",
		"--trusted-ca-file", in("etcd/ca.crt"), "--cert-file", in("etcd/server.crt"), "--key-file",
		in("etcd/server.key"),
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e="+peer,
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file", in("etcd/ca.crt"), "--peer-cert-file", in("etcd/peer.crt"), "--peer-key-file",
		in("etcd/peer.key"))
	eventually(t, time.Minute, "etcd is healthy", func() bool {
		health := start(t, "health", metrics+"/health")
		health.waitExit(10 * time.Second)
		return health.err == nil
	})

	own := dataDir(t)
	apiserver := start(t, "apiserver", "--data-dir", own, "--secure-port", port, "--etcd-servers", client,
		"--etcd-cafile", in("etcd/ca.crt"), "--etcd-certfile", in("apiserver-etcd-client.crt"), "--etcd-keyfile",
		in("apiserver-etcd-client.key"),
		"--client-ca-file", in("ca.crt"), "--tls-cert-file", in("apiserver.crt"), "--tls-private-key-file",
		in("apiserver.key"),
		"--kubelet-client-certificate", in("apiserver-kubelet-client.crt"), "--kubelet-client-key",
		in("apiserver-kubelet-client.key"),
		"--requestheader-client-ca-file", in("front-proxy-ca.crt"), "--requestheader-allowed-names",
		"front-proxy-client",
		"--proxy-client-cert-file", in("front-proxy-client.crt"), "--proxy-client-key-file",
		in("front-proxy-client.key"),
		"--service-account-signing-key-file", in("sa.key"))
	eventually(t, time.Minute, "the server serves", func() bool {
		require.True(t, apiserver.running(), apiserver.out.String())
		return strings.Contains(apiserver.out.String(), " serves ")
	})
	c := connect(t, filepath.Join(made, "admin.kubeconfig"))
	require.Equal(t, server, c.config.Host)
	parts := []*process{
		c.component("controllers", "--cluster-signing-cert-file", in("ca.crt"), "--cluster-signing-key-file",
			in("ca.key"),
			"--service-account-private-key-file", in("sa.key"), "--root-ca-file", in("ca.crt")),
		c.component("scheduler"),
	}
	for _, rack := range []string{"rack1", "rack2", "rack3"} {
		parts = append(parts, start(t, "node", "--kubeconfig", filepath.Join(made, rack+".kubeconfig"), "--node-prefix",
			rack+"-", "--nodes", "1", "--metrics-bind-address", "127.0.0.1:0"))
	}
	c.tour(kubectl, "tour")

	// A client certificate of the cluster is not valid for etcd.
	intruder := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{c.clientCertificate()},
	}}}
	res, err := intruder.Get(client + "/version")
	if err == nil {
		_ = res.Body.Close()
	}
	require.ErrorContains(t, err, "tls: ")

	// The running server picks up renewed certificates, and old ones stay valid until they expire.
	before := c.serverCertificate()
	certs(t, "renew", "all", "--data-dir", made)
	eventually(t, time.Minute, "the server shows its new certificate", func() bool {
		return c.serverCertificate() != before
	})
	renewed := connect(t, filepath.Join(made, "admin.kubeconfig"))
	code, body := renewed.get("/readyz")
	require.Equal(t, http.StatusOK, code, body)
	code, body = c.get("/readyz")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, certs(t, "check-expiration", "--data-dir", made), "apiserver-etcd-client")
	for _, p := range parts {
		p.interrupt()
	}
	apiserver.interrupt()
}

// clientCertificate returns the certificate in the kubeconfig.
func (c *cluster) clientCertificate() tls.Certificate {
	c.t.Helper()
	cert, err := tls.X509KeyPair(c.config.CertData, c.config.KeyData)
	require.NoError(c.t, err)
	return cert
}

// serverCertificate returns the serial number of the certificate on a new connection, or "".
func (c *cluster) serverCertificate() string {
	c.t.Helper()
	res, err := c.fresh().Get(c.config.Host + "/readyz")
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	return res.TLS.PeerCertificates[0].SerialNumber.String()
}

// fresh returns a client that uses a new connection for every request.
func (c *cluster) fresh() *http.Client {
	c.t.Helper()
	client, err := freshClient(c.config)
	require.NoError(c.t, err)
	return client
}

func freshClient(config *rest.Config) (*http.Client, error) {
	security, err := rest.TLSConfigFor(config)
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: security,
		DisableKeepAlives: true}}, err
}

// TestProjectedToken_IsBoundToThePod requests the token of a pod's volume like its kubelet, and uses it like the
// pod.
func TestProjectedToken_IsBoundToThePod(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "1")
	c.nodesReady(1)
	ctx := t.Context()
	core, rbac := c.client.CoreV1(), c.client.RbacV1()
	_, err := core.ServiceAccounts("default").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = rbac.Roles("default").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reads-maps"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{""},
			Resources: []string{"configmaps"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = rbac.RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "robot"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role",
			Name: "reads-maps"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	eventually(t, time.Minute, "the CA is published", func() bool {
		cm, err := core.ConfigMaps("default").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil && os.WriteFile(ca, []byte(cm.Data["ca.crt"]), 0o600) == nil
	})
	curl := func(token, path string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}",
			"--cacert", ca,
			"--header", "Authorization: Bearer "+token, c.config.Host+path).Output()
		require.NoError(t, err)
		return string(out)
	}
	const configMaps = "/api/v1/namespaces/default/configmaps"
	works := func(token string) {
		t.Helper()
		require.Equal(t, "200", curl(token, configMaps))
		for _, path := range []string{"/api/v1/namespaces/default/secrets", "/api/v1/namespaces/kube-system/configmaps",
			"/api/v1/nodes", "/metrics"} {
			require.Equal(t, "403", curl(token, path), path)
		}
	}
	run := func(name string) string {
		t.Helper()
		pod, err := core.Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{ServiceAccountName: "robot",
				Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		eventually(t, time.Minute, name+" runs", func() bool {
			pod, err = core.Pods("default").Get(ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			return pod.Status.Phase == corev1.PodRunning
		})
		return c.projectedToken(ctx, pod)
	}

	token := run("first")
	works(token)
	second := run("second")
	works(second)
	require.NoError(t, core.Pods("default").Delete(ctx, "first", *metav1.NewDeleteOptions(0)))
	eventually(t, time.Minute, "the token ends with its pod", func() bool { return curl(token, configMaps) == "401" })
	require.Equal(t, "200", curl(second, configMaps))
	require.NoError(t, core.ServiceAccounts("default").Delete(ctx, "robot", metav1.DeleteOptions{}))
	require.Equal(t, "401", curl(second, configMaps), "the token ends with its account")
	_, err = core.ServiceAccounts("default").Get(ctx, "robot", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// projectedToken requests the token of a pod's projected volume, as the pod's own node.
func (c *cluster) projectedToken(ctx context.Context, pod *corev1.Pod) string {
	c.t.Helper()
	var source *corev1.ServiceAccountTokenProjection
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil {
				source = s.ServiceAccountToken
			}
		}
	}
	require.NotNil(c.t, source, "the pod has a projected token")
	node := rest.CopyConfig(c.config)
	node.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + pod.Spec.NodeName,
		Groups: []string{"system:nodes"}}
	client, err := kubernetes.NewForConfig(node)
	require.NoError(c.t, err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	token, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request,
		metav1.CreateOptions{})
	require.NoError(c.t, err)
	return token.Status.Token
}
