//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

const guestbook = "../../examples/guestbook"

// TestTour runs the tour with both clients in parallel on one control plane.
func TestTour(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t))
	for name, client := range map[string]string{"kubectl": kubectl, "kubectl-lite": kubectlLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connect(t, c.kubeconfig).tour(client, name)
		})
	}
}

// tour runs the guestbook through its life cycle in a namespace of its own.
func (c *cluster) tour(client, namespace string) {
	t := c.t
	c.nodesReady(3)
	in := func(args ...string) string { return c.run(client, append([]string{"-n", namespace}, args...)...) }
	image := func() string {
		return in("get", "deployment", "guestbook", "-o", "jsonpath={.spec.template.spec.containers[*].image}")
	}
	rolledOut := func() {
		require.Contains(t, in("rollout", "status", "deployment/guestbook", "--timeout=60s"), "successfully rolled out")
	}

	c.run(client, "create", "namespace", namespace)
	applied := in("apply", "-f", guestbook)
	for _, line := range []string{"configmap/guestbook created", "service/guestbook created",
		"deployment.apps/guestbook created"} {
		require.Contains(t, applied, line)
	}
	rolledOut()
	require.Contains(t, in("apply", "-f", guestbook), "deployment.apps/guestbook unchanged")

	in("set", "image", "deployment/guestbook", "guestbook=guestbook:2")
	rolledOut()
	require.Equal(t, "guestbook:2", image())
	in("rollout", "undo", "deployment/guestbook")
	rolledOut()
	require.Equal(t, "guestbook:1", image())
	require.Regexp(t, `(?s)REVISION.*\n2 .*\n3 `, in("rollout", "history", "deployment/guestbook"))

	in("scale", "deployment/guestbook", "--replicas=50")
	in("wait", "deployment/guestbook", "--for=jsonpath={.status.readyReplicas}=50", "--timeout=60s")
	require.Equal(t, 50, strings.Count(in("get", "pods", "--no-headers"), " Running "))
	require.Contains(t, in("describe", "deployment", "guestbook"), "50 desired | 50 updated | 50 total | 50 available")
	require.Contains(t, in("get", "all", "-l", "app=guestbook", "-o", "name"), "deployment.apps/guestbook")

	c.run(client, "delete", "namespace", namespace, "--timeout=120s")
	require.Empty(t, c.run(client, "get", "namespace", namespace, "--ignore-not-found", "-o", "name"))
	left, err := c.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
}

func TestDemo_RunsTheTourWithEachClient(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]string{"kubectl": kubectl, "kubectl-lite": kubectlLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp := t.TempDir()
			cmd := exec.CommandContext(t.Context(), "sh", "../../examples/demo.sh")
			cmd.Env = append(os.Environ(), "COXSWAIN="+coxswain, "KUBECTL="+client, "TMPDIR="+tmp)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.NotContains(t, string(out), "Ctrl-C",
				"the hints of `coxswain up` do not apply to the demo")
			left, err := os.ReadDir(tmp)
			require.NoError(t, err)
			require.Empty(t, left, "the demo leaves nothing behind")
		})
	}
}

// TestWatch_ShowsEachEventAsItHappens reads the chunked stream, like curl.
func TestWatch_ShowsEachEventAsItHappens(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	c.config.NextProtos = []string{"http/1.1"} // HTTP/2 has frames instead of chunks
	c.reconnect()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config.Host+
		"/api/v1/namespaces/default/pods?watch=1", nil)
	require.NoError(t, err)
	response, err := c.http.Do(req)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, []string{"chunked"}, response.TransferEncoding)

	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	next := func() (kind, phase, label string) {
		require.True(t, lines.Scan(), "the stream continues: %v", lines.Err())
		var event struct {
			Type   string
			Object struct {
				Metadata metav1.ObjectMeta
				Status   struct{ Phase string }
			}
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &event), "%s", lines.Bytes())
		require.Equal(t, "web", event.Object.Metadata.Name)
		return event.Type, event.Object.Status.Phase, event.Object.Metadata.Labels["seen"]
	}

	c.run(kubectl, "run", "web", "--image=web")
	kind, phase, _ := next()
	require.Equal(t, []string{"ADDED", "Pending"}, []string{kind, phase})
	c.run(kubectl, "label", "pod", "web", "seen=yes")
	for label := ""; label != "yes"; { // the scheduler's update may come first
		kind, _, label = next()
		require.Equal(t, "MODIFIED", kind)
	}
	c.run(kubectl, "delete", "pod", "web", "--force", "--grace-period=0")
	for kind != "DELETED" {
		kind, _, _ = next()
		require.NotEqual(t, "ADDED", kind)
	}
}

// TestKubectl_SupportsCommandsForExploration runs commands that people use to look around.
func TestKubectl_SupportsCommandsForExploration(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t))
	c.nodesReady(3)
	c.run(kubectl, "apply", "-f", guestbook)
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	pod := strings.Fields(c.run(kubectl, "get", "pods", "-o", "name"))[0]
	node := c.run(kubectl, "get", pod, "-o", "jsonpath={.spec.nodeName}")
	for _, q := range []struct {
		args string
		want []string
	}{
		{"version", []string{"Server Version: " + kubeversion.Coxswain}},
		{"cluster-info", []string{"Kubernetes control plane", c.config.Host}},
		{"api-resources", []string{"deployments", "deploy", "apps/v1", "ReplicaSet", "leases"}},
		{"api-resources --namespaced=false -o name", []string{"nodes", "namespaces"}},
		{"api-versions", []string{"apps/v1", "coordination.k8s.io/v1", "v1"}},
		{"explain deployment.spec.strategy.rollingUpdate.maxSurge",
			[]string{"KIND:", "Deployment", "maxSurge <IntOrString>"}},
		{"explain pods.spec.containers --recursive", []string{"imagePullPolicy", "livenessProbe"}},
		{"get deployments -o wide", []string{"guestbook:1", "app=guestbook"}},
		{"get rs -o yaml", []string{"ownerReferences", "kind: Deployment"}},
		{"get all --all-namespaces", []string{"deployment.apps/guestbook", "replicaset.apps/guestbook"}},
		{"get pods -l app=guestbook --field-selector=status.phase=Running --show-labels",
			[]string{"pod-template-hash"}},
		{"get nodes --sort-by=.metadata.name -o name", []string{"node/node-0\nnode/node-1\nnode/node-2\n"}},
		{"get --raw /readyz", []string{"ok"}},
		{"describe " + pod, []string{"Controlled By:", "ReplicaSet/guestbook", "Scheduled", "Started"}},
		{"describe node " + node, []string{"Ready", "Allocatable:", "guestbook"}},
		{"describe deployment guestbook", []string{"RollingUpdateStrategy:", "ScalingReplicaSet"}},
		{"get events", []string{"SuccessfulCreate", "ScalingReplicaSet"}},
		{"diff -f " + guestbook, nil},
		{"apply -f " + guestbook + " --dry-run=server", []string{"(server dry run)"}},
		{"label deployment guestbook tier=front", []string{"labeled"}},
		{"annotate deployment guestbook note=hello", []string{"annotated"}},
		{`patch deployment guestbook --type=json -p [{"op":"replace","path":"/spec/replicas","value":2}]`,
			[]string{"patched"}},
		{`patch deployment guestbook --type=merge -p {"spec":{"replicas":3}}`, []string{"patched"}},
		{"delete -f " + guestbook, []string{`deployment.apps "guestbook" deleted`}},
	} {
		out := c.run(kubectl, strings.Fields(q.args)...)
		for _, want := range q.want {
			require.Contains(t, out, want, "kubectl %s", q.args)
		}
	}
	c.run(kubectl, "wait", "pods", "-l", "app=guestbook", "--for=delete", "--timeout=60s")

	_, stderr, err := c.try(kubectl, "apply", "-f",
		writeFile(t, "bad.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndatum: {a: b}\n"))
	require.Error(t, err)
	require.Contains(t, stderr, `unknown field "datum"`)
}

func TestRequests_WithoutACredentialAreRejected(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	stranger := connect(t, c.kubeconfig)
	stranger.config.CertData, stranger.config.KeyData = nil, nil
	stranger.reconnect()
	code, body := stranger.get("/api/v1/namespaces")
	require.Equal(t, http.StatusForbidden, code)
	requireStatus(t, body, http.StatusForbidden, metav1.StatusReasonForbidden,
		`User "system:anonymous" cannot list resource "namespaces"`)
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/version"} {
		code, _ := stranger.get(path)
		require.Equal(t, http.StatusOK, code, path)
	}

	start := time.Now()
	other := up(t, dataDir(t), "--nodes", "0")
	t.Logf("a second control plane serves after %v", time.Since(start))
	stranger.config.CertData, stranger.config.KeyData = other.config.CertData, other.config.KeyData
	stranger.reconnect()
	code, body = stranger.get("/api/v1/namespaces")
	require.NotEqual(t, http.StatusOK, code, "a certificate of another CA: %s", body)
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
