package hint_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/kubectl-lite/hint"
	"github.com/coxswain-dev/coxswain/testenv"
)

// TestHint_FollowsKubectlsMessage compares the error stream. The part before the hint, the output and the exit code are
// kubectl's, which TestParity checks.
func TestHint_FollowsKubectlsMessage(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	const pod = "{apiVersion: v1, kind: Pod, metadata: {name: %, namespace: default}, spec: {containers: [{name: c, " +
		"image: i}]}}\n---\n"
	l.Succeed(t, strings.ReplaceAll(pod, "%", "web-1")+strings.ReplaceAll(pod, "%", "db-0")+
		"{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n"+
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: shop}}\n---\n"+
		"{apiVersion: v1, kind: Node, metadata: {name: node-0}}\n", "create -f -")
	const nothing = "No resources found in %s namespace.\n"
	for line, c := range map[string]struct {
		code      int
		out, hint string // the error stream before the hint, and the hint
	}{
		"get pods -n nosuch": {0, strings.ReplaceAll(nothing, "%s", "nosuch"),
			`the namespace "nosuch" does not exist`},
		"get pods -n shpo": {0, strings.ReplaceAll(nothing, "%s", "shpo"),
			`the namespace "shpo" does not exist; did you mean shop?`},
		"get pods -n shop":  {0, strings.ReplaceAll(nothing, "%s", "shop"), ""},
		"events -n shpo":    {0, "No events found in shpo namespace.\n", `the namespace "shpo" does not exist; did you mean shop?`},
		"get deploy -A":     {0, "No resources found\n", ""},
		"get pod x -n shpo": {1, "Error from server (NotFound): namespaces \"shpo\" not found\n", `did you mean namespaces "shop"?`},
		"exec x -n shpo -- date": {1, "Error from server (NotFound): pods \"x\" not found\n",
			`the namespace "shpo" does not exist; did you mean shop?`},
		"get deploymnt":    {1, "error: the server doesn't have a resource type \"deploymnt\"\n", "did you mean deployments?"},
		"get dployments":   {1, "error: the server doesn't have a resource type \"dployments\"\n", "did you mean deployments?"},
		"describe srevice": {1, "error: the server doesn't have a resource type \"srevice\"\n", "did you mean services?"},
		"get quetzal":      {1, "error: the server doesn't have a resource type \"quetzal\"\n", ""},
		"get pod wbe-1":    {1, "Error from server (NotFound): pods \"wbe-1\" not found\n", `did you mean pods "web-1"?`},
		"delete pod web-2": {1, "Error from server (NotFound): pods \"web-2\" not found\n", `did you mean pods "web-1"?`},
		"logs wbe-1":       {1, "error: error from server (NotFound): pods \"wbe-1\" not found in namespace \"default\"\n", `did you mean pods "web-1"?`},
		"exec db0 -- date": {1, "Error from server (NotFound): pods \"db0\" not found\n", `did you mean pods "db-0"?`},
		"cordon node0":     {1, "Error from server (NotFound): nodes \"node0\" not found\n", `did you mean nodes "node-0"?`},
		"why pod/wbe-1":    {1, "Error from server (NotFound): pods \"wbe-1\" not found\n", `did you mean pods "web-1"?`},
		"get cm settings":  {1, "Error from server (NotFound): configmaps \"settings\" not found\n", `configmaps "settings" exists in the namespace shop`},
		"get pod elephant": {1, "Error from server (NotFound): pods \"elephant\" not found\n", ""},
		"get ns shpo":      {1, "Error from server (NotFound): namespaces \"shpo\" not found\n", `did you mean namespaces "shop"?`},
		"get pods --namespce shop": {1, "error: unknown flag: --namespce\nSee 'kubectl-lite get --help' for usage.\n",
			"did you mean --namespace?"},
		"get pods --context tset": {1, "Error in configuration: context was not found for specified context: tset\n",
			"did you mean test?"},
		"config use-context other": {1, "error: no context exists with the name: \"other\"\n",
			"the kubeconfig has the contexts test"},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			got := l.Run(t, "", line)
			want := c.out
			if c.hint != "" {
				want += hint.Prefix + c.hint + "\n"
			}
			require.Equal(t, want, got.ErrOut)
			require.Equal(t, c.code, got.Code)
			require.Empty(t, got.Out)
		})
	}
	got := l.Run(t, "{apiVersion: apps/v1, kind: Deploymnt, metadata: {name: a}}", "create -f -")
	require.Contains(t, got.ErrOut, hint.Prefix+"did you mean Deployment (apiVersion apps/v1)?\n")
	got = l.Run(t, "{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {name: a}}", "create -f -")
	require.Contains(t, got.ErrOut, hint.Prefix+"the server has Deployment in apiVersion apps/v1\n")
}

// TestHint_NamesOfTheServerControlNoTerminal asks for an object whose near name is long and hostile.
func TestHint_NamesOfTheServerControlNoTerminal(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	got := l.Run(t, "", "get pod '"+strings.Repeat("a", 4000)+"'")
	require.Equal(t, 1, got.Code)
	require.NotContains(t, got.ErrOut, hint.Prefix)
	got = l.Run(t, "", "get pods -n 'no/such'")
	clitest.RequireVisible(t, got.ErrOut)
}

// TestHint_RefusedConnectionIsOneLine starts processes, because client-go logs to the process's error stream.
func TestHint_RefusedConnectionIsOneLine(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	for _, line := range []string{"get pods", "get deploymnt", "describe pod a", "logs a", "why pod/a", "tree pod/a",
		"api-resources", "delete pod a", "explain pods", "apply view-last-applied cm/a"} {
		out := clitest.StartChild(t, append([]string{"--server=https://" + address, "--token=x", "--cache-dir=" +
			filepath.Join(t.TempDir(), "cache"), "--kubeconfig="}, strings.Fields(line)...)...)
		want := "The connection to the server " + address + " was refused - did you specify the right host or port?\n"
		require.Eventually(t, func() bool { return strings.HasSuffix(out.String(), want) }, time.Minute,
			10*time.Millisecond, "%s: %s", line, out)
		require.Equal(t, want, out.String(), line)
	}
}
