//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

// assets are the programs of `coxswain assets`, with a running etcd.
type assets struct {
	t             *testing.T
	dir, certs    string
	etcd          *process
	etcdURL, port string
}

func startAssets(t *testing.T) *assets {
	t.Helper()
	a := &assets{t: t, dir: filepath.Join(t.TempDir(), "assets"), certs: t.TempDir(), port: freePort(t)}
	out, err := exec.Command(coxswain, "assets", a.dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "KUBEBUILDER_ASSETS="+a.dir+"\n", string(out))
	a.etcdURL = "http://127.0.0.1:" + freePort(t)
	a.etcd = startProgram(t, filepath.Join(a.dir, "etcd"), "--listen-client-urls="+a.etcdURL,
		"--advertise-client-urls="+a.etcdURL, "--listen-peer-urls=http://127.0.0.1:"+freePort(t),
		"--data-dir="+t.TempDir(), "--unsafe-no-fsync=true")
	a.healthy(http.DefaultClient, a.etcdURL+"/health")
	require.NoError(t, os.WriteFile(filepath.Join(a.certs, "tokens"), []byte("secret,admin,,system:masters\n"), 0o600))
	return a
}

// healthy waits for a 200, like envtest.
func (a *assets) healthy(client *http.Client, url string) {
	a.t.Helper()
	eventually(a.t, time.Minute, url, func() bool {
		response, err := client.Get(url)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return err == nil && response.StatusCode == http.StatusOK
	})
}

// serve starts kube-apiserver with the flags of envtest, and returns a client when it is healthy.
func (a *assets) serve(environment string, more ...string) (*process, kubernetes.Interface) {
	a.t.Helper()
	p := startProgram(a.t, "env", append([]string{environment, filepath.Join(a.dir, "kube-apiserver"),
		"--cert-dir=" + a.certs,
		"--etcd-servers=" + a.etcdURL, "--secure-port=" + a.port, "--bind-address=127.0.0.1", "--allow-privileged=true",
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
		"--token-auth-file=" + filepath.Join(a.certs, "tokens")}, more...)...)
	eventually(a.t, time.Minute, "kube-apiserver has a certificate", func() bool {
		_, err := os.Stat(filepath.Join(a.certs, "apiserver.crt"))
		return err == nil
	})
	config := &rest.Config{Host: "https://127.0.0.1:" + a.port, BearerToken: "secret", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(a.certs, "apiserver.crt")}}
	client, err := rest.HTTPClientFor(config)
	require.NoError(a.t, err)
	a.healthy(client, config.Host+"/healthz")
	return p, kubernetes.NewForConfigOrDie(config)
}

// Acknowledged writes survive when the API server is killed and another one starts.
func TestAssets_KeepDataWhenTheAPIServerIsKilled(t *testing.T) {
	t.Parallel()
	a := startAssets(t)
	p, client := a.serve("COXSWAIN_ASSETS=")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "namespace"}}
	created, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	require.NoError(t, err)
	p.kill()
	p, client = a.serve("COXSWAIN_ASSETS=", "--feature-gates=SomeGate=true")
	require.Contains(t, p.out.String(), "--feature-gates=SomeGate=true", "flags without effect are logged")
	found, err := client.CoreV1().Namespaces().Get(t.Context(), "namespace", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created.UID, found.UID)
	p.interrupt()
	a.etcd.signal(syscall.SIGTERM)
	a.etcd.waitExit(5 * time.Second)
}

// With COXSWAIN_ASSETS=full namespaces are finalized and there are Nodes.
func TestAssets_RunControllersSchedulerAndANode(t *testing.T) {
	t.Parallel()
	a := startAssets(t)
	p, client := a.serve("COXSWAIN_ASSETS=full")
	ctx := t.Context()
	eventually(t, time.Minute, "a Node is Ready", func() bool {
		node, err := client.CoreV1().Nodes().Get(ctx, "node-0", metav1.GetOptions{})
		return err == nil && len(node.Spec.Taints) == 0
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}}}
	ended := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ended"}}
	_, err := client.CoreV1().Namespaces().Create(ctx, ended, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Pods("ended").Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, time.Minute, "the pod runs", func() bool {
		pod, err := client.CoreV1().Pods("ended").Get(ctx, "web", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning
	})
	require.NoError(t, client.CoreV1().Namespaces().Delete(ctx, "ended", metav1.DeleteOptions{}))
	eventually(t, time.Minute, "the namespace is gone", func() bool {
		_, err := client.CoreV1().Namespaces().Get(ctx, "ended", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	p.interrupt()
}

// Tools use --version to find the version, and envtest uses --help to find the supported flags.
func TestAssets_SupportVersionAndHelpFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, exec.Command(coxswain, "assets", dir).Run())
	release := regexp.QuoteMeta(kubeversion.Release)
	for call, pattern := range map[string]string{
		"etcd --version":                  `^etcd Version: 3\.\d+\.\d+\nGit SHA: .*\nGo Version: go`,
		"etcd --help":                     `(?m)^\s*--unsafe-no-fsync\b`,
		"kube-apiserver --version":        `^Kubernetes ` + release,
		"kube-apiserver --version=raw":    `^version\.Info\{Major:"1", Minor:"` + kubeversion.Minor + `",`,
		"kube-apiserver --help":           `(?m)^\s*--etcd-servers\b`,
		"kubectl version --client":        `^Client Version: ` + release,
		"kubectl version --client -ojson": `"gitVersion": "` + release,
	} {
		words := strings.Fields(call)
		out, err := exec.Command(filepath.Join(dir, words[0]), words[1:]...).CombinedOutput()
		require.NoError(t, err, call)
		require.Regexp(t, regexp.MustCompile(pattern), string(out), call)
		require.NotContains(t, string(out), "--insecure-port", "envtest would set it")
	}
}
