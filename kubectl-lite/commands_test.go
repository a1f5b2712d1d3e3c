package kubectllite

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
	"github.com/coxswain-dev/coxswain/testenv"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// TestCommands_PrintLikeKubectl runs invocations in order on one server, and checks the output and exit code of each.
func TestCommands_PrintLikeKubectl(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	for _, step := range []struct {
		args  string
		stdin string
		out   string
		err   string
		code  int
	}{
		{args: "get pods", err: "No resources found in default namespace.\n"},
		{args: "get pods -A", err: "No resources found\n"},
		{args: "get pod nope", err: "Error from server (NotFound): pods \"nope\" not found\n", code: 1},
		{args: "get pod nope --ignore-not-found"},
		{args: "get wombats", err: "error: the server doesn't have a resource type \"wombats\"\n", code: 1},
		{args: "apply --validate=false -f - --dry-run=client", stdin: clitest.WebManifest,
			out: "deployment.apps/web created (dry run)\nconfigmap/settings created (dry run)\n"},
		{args: "apply --validate=false -f - --dry-run=server", stdin: clitest.WebManifest,
			out: "deployment.apps/web created (server dry run)\nconfigmap/settings created (server dry run)\n"},
		{args: "apply --validate=false -f -", stdin: clitest.WebManifest,
			out: "deployment.apps/web created\nconfigmap/settings created\n"},
		{args: "apply --validate=false -f -", stdin: clitest.WebManifest,
			out: "deployment.apps/web unchanged\nconfigmap/settings unchanged\n"},
		{args: "apply --validate=false -f -", stdin: strings.Replace(clitest.WebManifest, "nginx:1", "nginx:2", 1),
			out: "deployment.apps/web configured\nconfigmap/settings unchanged\n"},
		{args: "get deploy web -o jsonpath={.spec.template.spec.containers[*].image}", out: "nginx:2"},
		{args: "create --validate=false -f -", stdin: "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}",
			err: "Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"settings\" " +
				"already exists\n", code: 1},
		{args: "create configmap more --from-literal=a=b --validate=false", out: "configmap/more created\n"},
		{args: "create configmap more --from-literal=a=b --validate=false",
			err: "error: failed to create configmap: configmaps \"more\" already exists\n", code: 1},
		{args: "create deployment api --image=reg/api.v1:3 --replicas=2 --dry-run=client -o jsonpath={.spec.replicas}",
			out: "2"},
		{args: "create ns shop", out: "namespace/shop created\n"},
		{args: "create sa robot", out: "serviceaccount/robot created\n"},
		{args: "create secret generic keys --from-literal=k=v -o jsonpath={.data.k}", out: "dg=="},
		{args: "create deployment web2", err: "error: required flag(s) \"image\" not set\n", code: 1},
		{args: "get cm -o name", out: "configmap/more\nconfigmap/settings\n"},
		{args: "get cm --no-headers", out: "more\nsettings\n"},
		{args: "get cm", out: "NAME\nmore\nsettings\n"},
		{args: "get cm,deploy", out: "NAME\nconfigmap/more\nconfigmap/settings\n\nNAME\ndeployment.apps/web\n"},
		{args: "get all --show-labels", out: "NAME                  LABELS\ndeployment.apps/web   app=web\n"},
		{args: "get deploy -l app=web -o " +
			"custom-columns=N:metadata.name,I:.spec.template.spec.containers[0].image,X:.nope",
			out: "N     I         X\nweb   nginx:2   <none>\n"},
		{args: "get cm --sort-by=.metadata.name -o jsonpath={.items[*].metadata.name}", out: "more settings"},
		{args: "get cm -o wat", code: 1, err: "error: unable to match a printer suitable for the output format " +
			"\"wat\", allowed formats are: " +
			"custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml\n"},
		{args: "get cm --frob", code: 1,
			err: "error: unknown flag: --frob\nSee 'kubectl-lite get --help' for usage.\n"},
		{args: "frob", code: 1, err: "error: unknown command \"frob\" for \"kubectl-lite\"\n"},
		{args: "scale deploy/web --replicas=7", out: "deployment.apps/web scaled\n"},
		{args: "get deploy web -o jsonpath={.spec.replicas}", out: "7"},
		{args: "rollout pause deploy/web", out: "deployment.apps/web paused\n"},
		{args: "rollout resume deploy/web", out: "deployment.apps/web resumed\n"},
		{args: "rollout restart deploy/web", out: "deployment.apps/web restarted\n"},
		{args: "rollout status", code: 1, err: "error: required resource not specified\n"},
		{args: "delete cm more settings --dry-run=server", out: "configmap \"more\" deleted from default " +
			"namespace (server dry run)\nconfigmap \"settings\" deleted from default namespace (server dry run)\n"},
		{args: "delete cm more -o name", out: "configmap/more\n"},
		{args: "delete cm more", code: 1, err: "Error from server (NotFound): configmaps \"more\" not found\n"},
		{args: "delete cm -l x=y", out: "No resources found\n"},
		{args: "delete deploy --all", out: "deployment.apps \"web\" deleted from default namespace\n"},
		{args: "delete ns shop --now --grace-period=3", code: 1,
			err: "error: --now and --grace-period cannot be specified together\n"},
		{args: "get --raw /version", out: "{\"gitVersion\":\"" + kubeversion.Release + "+fake\",\"major\":\"1\",\"minor\":\"" +
			kubeversion.Minor + "\"}\n"},
	} {
		got := f.run(t, step.stdin, strings.Fields(step.args)...)
		require.Equal(t, clitest.Outcome{Code: step.code, Out: step.out, ErrOut: step.err}, trimTrailing(got),
			step.args)
	}
}

// trimTrailing removes the spaces that align a last column.
func trimTrailing(o clitest.Outcome) clitest.Outcome {
	if !strings.Contains(o.Out, "\n") {
		return o
	}
	lines := strings.Split(o.Out, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	o.Out = strings.Join(lines, "\n")
	return o
}

func TestGet_WatchPrintsChangesAsTheyHappen(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "one").Code)
	ctx, cancel := context.WithCancel(t.Context())
	out := &clitest.Buffer{}
	ended := make(chan int)
	go func() {
		ended <- Main(ctx, []string{"--kubeconfig", f.kubeconfig(t), "--cache-dir", t.TempDir(), "get", "cm", "-w",
			"--output-watch-events"},
			genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: io.Discard})
	}()
	watching := func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.watchers) == 1 }
	require.Eventually(t, watching, time.Minute, time.Millisecond)
	require.Zero(t, f.run(t, "", "create", "configmap", "two").Code)
	require.Zero(t, f.run(t, "", "delete", "configmap", "one", "--wait=false").Code)
	require.Eventually(t, func() bool {
		return strings.Join(strings.Fields(out.String()), " ") == "EVENT NAME ADDED one ADDED two DELETED one"
	}, time.Minute, time.Millisecond, out)
	cancel()
	require.Zero(t, <-ended)
}

// Each object that could not be applied has its own line, as with kubectl, even if the lines are equal.
func TestErrors_AreReportedForEachObject(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	var documents strings.Builder
	for i := range 3 {
		fmt.Fprintf(&documents, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c%d, namespace: nope}}\n---\n", i)
	}
	got := l.Run(t, documents.String(), "apply -f -")
	require.Equal(t, 1, got.Code)
	require.Equal(t, strings.Repeat("Error from server (NotFound): error when creating \"STDIN\": namespaces "+
		"\"nope\" not found\n", 3), got.ErrOut)
	l.Succeed(t, "", "create deployment a --image=i")
	l.Succeed(t, "", "create deployment b --image=i")
	got = l.Run(t, "", "set image deploy --all nope=i")
	require.Equal(t, 2, strings.Count(got.ErrOut, `unable to find container named "nope"`), got.ErrOut)
}

func TestRoot_BuildsTheVerbsInTheArguments(t *testing.T) {
	t.Parallel()
	for _, g := range groups() {
		for _, v := range g.verbs {
			require.Equal(t, v.name, v.build(session.New(genericiooptions.NewTestIOStreamsDiscard())).Name())
		}
	}
	require.Nil(t, namedVerbs(nil))
	require.Nil(t, namedVerbs([]string{"help", "get"}))
	require.Nil(t, namedVerbs([]string{"frob", "get"}), "similar names are found among all verbs")
	require.Nil(t, namedVerbs([]string{"--help"}))
	require.Equal(t, map[string]bool{"get": true}, namedVerbs([]string{"get", "pods"}))
	require.Equal(t, map[string]bool{"get": true, "describe": true},
		namedVerbs([]string{"-n", "get", "describe", "pods"}))
}
