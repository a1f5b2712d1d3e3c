//go:build e2e

package e2e

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCerts_ExpireAndAreRenewedWithoutRestarts gives etcd, API server, controllers, scheduler and nodes
// certificates that are valid for a minute, renews them in time, then lets them expire and renews them late. No part is
// restarted. A renewal in time causes no errors, and after a late one all parts recover at once.
func TestCerts_ExpireAndAreRenewedWithoutRestarts(t *testing.T) {
	t.Parallel()
	made := dataDir(t)
	port := freePort(t)
	certs(t, "--data-dir", made, "--server", "https://127.0.0.1:"+port, "--nodes", "2", "--validity", "1m")
	in := func(name string) string { return filepath.Join(made, "pki", name) }
	client, peer := "https://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+freePort(t)
	elected := []string{"--leader-elect-lease-duration", "3m", "--leader-elect-renew-deadline", "2m"}
	kubeconfig := func(part string, args ...string) *process {
		return start(t, append([]string{part, "--kubeconfig", filepath.Join(made, part+".kubeconfig"),
			"--metrics-bind-address", "127.0.0.1:0", "--log-level", "info"}, args...)...)
	}
	parts := map[string]*process{
		"etcd": start(t, "etcd", "--name", "e", "--data-dir", dataDir(t), "--log-level", "error",
			"--listen-client-urls", client, "--advertise-client-urls", client, "--client-cert-auth",
			"--trusted-ca-file", in("etcd/ca.crt"), "--cert-file", in("etcd/server.crt"), "--key-file",
			in("etcd/server.key"), "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", "e="+peer),
		"apiserver": start(t, "apiserver", "--data-dir", dataDir(t), "--secure-port", port, "--nodes", "0",
			"--etcd-servers", client, "--etcd-cafile", in("etcd/ca.crt"), "--etcd-certfile",
			in("apiserver-etcd-client.crt"), "--etcd-keyfile", in("apiserver-etcd-client.key"), "--client-ca-file",
			in("ca.crt"), "--tls-cert-file", in("apiserver.crt"), "--tls-private-key-file", in("apiserver.key"),
			"--service-account-signing-key-file", in("sa.key")),
		"controllers": kubeconfig("controllers", append(elected, "--root-ca-file", in("ca.crt"))...),
		"scheduler":   kubeconfig("scheduler", elected...),
		"node":        kubeconfig("node", "--nodes", "2"),
	}
	admin := filepath.Join(made, "admin.kubeconfig")
	expiry := func(kubeconfig *cluster) time.Time { return kubeconfig.clientCertificate().Leaf.NotAfter }
	works := func(name string) time.Duration {
		t.Helper()
		from, c := time.Now(), connect(t, admin)
		c.newPodRuns(name)
		for part, p := range parts {
			require.True(t, p.running(), "%s has ended: %s", part, p.out.String())
		}
		return time.Since(from)
	}
	first := connect(t, admin)
	works("before")

	// In time: all parts use the second certificates before the first expire.
	certs(t, "--data-dir", made, "--server", "https://127.0.0.1:"+port, "--nodes", "2", "--validity", "2m", "--renew")
	second := connect(t, admin)
	eventually(t, 2*time.Minute, "the first certificates expire", func() bool { return first.refused(expiry(first)) })
	t.Logf("renewed in time: a new pod ran after %v", works("renewed"))

	// Late: all certificates have expired.
	eventually(t, 3*time.Minute, "the second certificates expire", func() bool {
		return second.refused(expiry(second))
	})
	certs(t, "--data-dir", made, "--server", "https://127.0.0.1:"+port, "--nodes", "2", "--renew")
	t.Logf("renewed late: a new pod ran after %v", works("late"))
	for _, part := range []string{"node", "scheduler", "controllers", "apiserver"} {
		parts[part].interrupt()
	}
}

// refused reports whether a new connection with the client certificate is rejected, because it expired.
func (c *cluster) refused(expires time.Time) bool {
	c.t.Helper()
	if time.Now().Before(expires) {
		return false
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{c.clientCertificate()}}}}
	response, err := client.Get(c.config.Host + "/api/v1/namespaces")
	if err != nil {
		return strings.Contains(err.Error(), "tls: ")
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusUnauthorized
}

// newPodRuns waits until the pod of a new Deployment runs, which involves all parts of a control plane. It returns the
// creation time of the Deployment by the API server's clock.
func (c *cluster) newPodRuns(name string) (created time.Time) {
	c.t.Helper()
	deployments := c.client.AppsV1().Deployments("default")
	d := oneReplica(name)
	eventually(c.t, time.Minute, "the Deployment "+name, func() bool {
		_, err := deployments.Create(c.t.Context(), d, metav1.CreateOptions{})
		return err == nil
	})
	eventually(c.t, time.Minute, "its pod runs", func() bool {
		have, err := deployments.Get(c.t.Context(), name, metav1.GetOptions{})
		created = have.CreationTimestamp.Time
		return err == nil && have.Status.ReadyReplicas == 1
	})
	return created
}

// oneReplica returns a Deployment of one pod.
func oneReplica(name string) *appsv1.Deployment {
	selector, template := podsOf(name, "one", nil)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector, Template: template}}
}
