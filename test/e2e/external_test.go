//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// etcd is an etcd server as a process of its own.
type etcd struct {
	*process
	// flags are the API server's flags for this etcd.
	flags []string
}

// startEtcd starts an etcd on loopback, plain or with TLS on both sides.
func startEtcd(t *testing.T, secure bool, more ...string) *etcd {
	t.Helper()
	scheme, flags := "http", []string(nil)
	var security []string
	if secure {
		dir := certificates(t)
		in := func(name string) string { return filepath.Join(dir, name) }
		scheme = "https"
		security = []string{"--client-cert-auth", "--trusted-ca-file", in("ca.crt"), "--cert-file", in("leaf.crt"),
			"--key-file", in("leaf.key")}
		flags = []string{"--etcd-cafile", in("ca.crt"), "--etcd-certfile", in("leaf.crt"), "--etcd-keyfile",
			in("leaf.key")}
	}
	client, peer, metrics := scheme+"://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+
		freePort(t)
	p := start(t, append([]string{"etcd", "--name", "e", "--data-dir", dataDir(t), "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-metrics-urls", metrics,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e=" + peer},
		append(security, more...)...)...)
	eventually(t, time.Minute, "etcd is healthy", func() bool {
		require.True(t, p.running())
		health := start(t, "health", metrics+"/health")
		health.waitExit(10 * time.Second)
		return health.err == nil
	})
	return &etcd{process: p, flags: append(flags, "--etcd-servers", client)}
}

// apiserver starts an API server on this etcd.
func (e *etcd) apiserver(dir string, args ...string) *cluster {
	e.t.Helper()
	args = append([]string{"apiserver", "--data-dir", dir, "--secure-port", "0"}, args...)
	return serving(e.t, start(e.t, append(args, e.flags...)...), dir)
}

// component starts one of the API server's clients, with its own identity.
func (c *cluster) component(name string, args ...string) *process {
	c.t.Helper()
	kubeconfig := filepath.Join(filepath.Dir(c.kubeconfig), name+".kubeconfig")
	return start(c.t, append([]string{name, "--kubeconfig", kubeconfig, "--metrics-bind-address", "127.0.0.1:0"},
		args...)...)
}

func TestExternalEtcd_WithEachPartAProcess(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEtcd(t, secure)
			dir := dataDir(t)
			c := e.apiserver(dir)
			parts := []*process{c.component("controllers"), c.component("scheduler"),
				c.component("node", "--nodes", "3")}
			c.tour(kubectl, "tour")
			for _, p := range parts {
				p.interrupt()
			}
			c.run(kubectlLite, "create", "configmap", "kept")
			c.server.interrupt()
			require.True(t, e.running())

			c = e.apiserver(dir)
			c.run(kubectlLite, "get", "configmap", "kept")
			c.server.interrupt()
		})
	}
}

// TestFullQuota_OfAnExternalEtcdIsRecovered fills an etcd up to its quota: deletions still work, and writes work again
// after room is made.
func TestFullQuota_OfAnExternalEtcdIsRecovered(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, true, "--quota-backend-bytes=8388608")
	c := e.apiserver(dataDir(t))
	maps, big := c.client.CoreV1().ConfigMaps("default"), strings.Repeat("x", 900_000)
	create := func(i int) error {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("big-", i)},
			Data: map[string]string{"x": big}}
		_, err := maps.Create(t.Context(), m, metav1.CreateOptions{})
		return err
	}
	made := 0
	var err error
	for ; err == nil && made < 20; made++ {
		err = create(made)
	}
	require.ErrorContains(t, err, "etcd is out of space")
	code, body := c.get("/readyz/etcd")
	require.Equal(t, 200, code, body, "reads and deletions still work")
	for i := range made - 1 {
		require.NoError(t, maps.Delete(t.Context(), fmt.Sprint("big-", i), metav1.DeleteOptions{}))
	}
	require.ErrorContains(t, create(made), "etcd is out of space", "deleted objects take space until they are compacted")

	room := start(t, append([]string{"etcd", "make-room"}, e.flags...)...)
	room.waitExit(time.Minute)
	require.NoError(t, room.err, room.out.String())
	require.Contains(t, room.out.String(), "of a quota of 8388608")
	require.NoError(t, create(made))
	code, body = c.get("/readyz/etcd")
	require.Equal(t, 200, code, body)
}

// TestTwoAPIServers_ShareTheirData runs two API servers with one etcd and one CA: each shows the other's writes in
// reads and watches, and works without the other.
func TestTwoAPIServers_ShareTheirData(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, false)
	first := e.apiserver(dataDir(t))
	dir := dataDir(t)
	require.NoError(t,
		os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(filepath.Dir(first.kubeconfig), "pki"))))
	second := e.apiserver(dir)

	watching, err := second.client.CoreV1().ConfigMaps("default").Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=shared"})
	require.NoError(t, err)
	defer watching.Stop()
	first.run(kubectlLite, "create", "configmap", "shared", "--from-literal=by=first")
	require.Equal(t, "ADDED", string((<-watching.ResultChan()).Type))
	require.Equal(t, "first", second.run(kubectlLite, "get", "configmap", "shared", "-o", "jsonpath={.data.by}"))
	second.run(kubectlLite, "patch", "configmap", "shared", "-p", `{"data":{"by":"second"}}`)
	require.Equal(t, "second", first.run(kubectlLite, "get", "configmap", "shared", "-o", "jsonpath={.data.by}"))

	// A client that trusts one server trusts the other, because they share a CA.
	code, body := first.get("/api/v1/namespaces/default/configmaps/shared")
	require.Equal(t, 200, code, body)
	first.config.Host = second.config.Host
	first.reconnect()
	code, body = first.get("/api/v1/namespaces/default/configmaps/shared")
	require.Equal(t, 200, code, body)

	first.server.kill()
	second.run(kubectlLite, "delete", "configmap", "shared")
	for event := range watching.ResultChan() {
		if event.Type == "DELETED" {
			return
		}
	}
	t.Fatal("the watch on the second server ended with the first")
}

// TestLeader_IsReplacedWhenKilled kills the leading controllers; the others take over.
func TestLeader_IsReplacedWhenKilled(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0"), dir)
	c.component("scheduler")
	c.component("node", "--nodes", "1")
	soon := []string{"--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1s",
		"--leader-elect-retry-period=200ms"}
	holder := func() string {
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "kube-controller-manager",
			metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}

	leading := c.component("controllers", soon...)
	eventually(t, time.Minute, "a leader", func() bool { return holder() != "" })
	first := holder()
	c.component("controllers", soon...)
	c.run(kubectl, "apply", "-f", guestbook)
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	require.Equal(t, first, holder(), "a leader that is well stays the leader")

	leading.kill()
	eventually(t, time.Minute, "another leader", func() bool { return holder() != first && holder() != "" })
	c.run(kubectl, "scale", "deployment/guestbook", "--replicas=5")
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	c.run(kubectl, "wait", "deployment/guestbook", "--for=jsonpath={.status.readyReplicas}=5", "--timeout=60s")
}

// certificates creates a CA, and one certificate for loopback and these names, for both sides of a connection.
func certificates(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write := func(name, kind string, der []byte) {
		content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	issue := func(name string, serial int64, parent *x509.Certificate, signer *ecdsa.PrivateKey) (
		*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		cert := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true,
			IsCA: parent == nil, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		if parent == nil {
			parent, signer = cert, key
		}
		der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
		require.NoError(t, err)
		write(name+".crt", "CERTIFICATE", der)
		private, err := x509.MarshalECPrivateKey(key)
		require.NoError(t, err)
		write(name+".key", "EC PRIVATE KEY", private)
		return cert, key
	}
	ca, key := issue("ca", 1, nil, nil)
	issue("leaf", 2, ca, key)
	return dir
}
