package kubectllite

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/testenv"
)

// live runs invocations against a whole control plane, whose pods come up.
type live struct {
	kubeconfig string
	cache      string
}

func startLive(t *testing.T, opts ...testenv.Option) live {
	t.Helper()
	dir := t.TempDir()
	l := live{filepath.Join(dir, "config"), filepath.Join(dir, "cache")}
	require.NoError(t, writeKubeconfig(testenv.Start(t, opts...), l.kubeconfig))
	return l
}

func (l live) run(t *testing.T, stdin, line string) outcome {
	t.Helper()
	return runWith(t, t.Context(), l.kubeconfig, stdin,
		append([]string{"--cache-dir=" + l.cache}, splitWords(line)...)...)
}

// succeed runs an invocation that must succeed, and returns its output.
func (l live) succeed(t *testing.T, stdin, line string) string {
	t.Helper()
	got := l.run(t, stdin, line)
	require.Zero(t, got.code, "%s: %s", line, got.errOut)
	return got.out
}

func TestRollout_FollowsADeploymentFromBirthToRollback(t *testing.T) {
	t.Parallel()
	l := startLive(t)
	l.succeed(t, webManifest, "apply -f -")
	require.Contains(t, l.succeed(t, "", "rollout status deploy/web --timeout=30s"),
		"deployment \"web\" successfully rolled out\n")
	require.Equal(t, "deployment.apps/web image updated\n", l.succeed(t, "", "set image deploy/web nginx=nginx:2"))
	require.Contains(t, l.succeed(t, "", "rollout status deploy/web --timeout=30s"), "successfully rolled out")
	require.Contains(t, l.succeed(t, "", "rollout history deploy/web"),
		"REVISION  CHANGE-CAUSE\n1         <none>\n2         <none>\n")
	require.Equal(t, "deployment.apps/web rolled back\n", l.succeed(t, "", "rollout undo deploy/web"))
	require.Contains(t, l.succeed(t, "", "rollout status deploy/web --timeout=30s"), "successfully rolled out")
	require.Equal(t, "nginx:1",
		l.succeed(t, "", "get deploy web -o jsonpath='{.spec.template.spec.containers[0].image}'"))
	require.Equal(t, "deployment.apps/web condition met\n",
		l.succeed(t, "", "wait deploy/web --for=condition=Available --timeout=30s"))
	require.Equal(t, "deployment.apps \"web\" deleted from default namespace\n",
		l.succeed(t, "", "delete deploy web --cascade=foreground"))
	require.Empty(t, l.succeed(t, "", "get deploy,rs -o name"))
}

func TestDelete_WaitsUntilANamespaceIsGone(t *testing.T) {
	t.Parallel()
	l := startLive(t)
	l.succeed(t, "", "create ns shop")
	l.succeed(t, "", "create deployment web --image=nginx --replicas=3 -n shop")
	l.succeed(t, "", "rollout status deploy/web -n shop --timeout=30s")
	l.succeed(t, "", "delete ns shop --timeout=30s")
	require.Equal(t, "Error from server (NotFound): namespaces \"shop\" not found\n",
		l.run(t, "", "get ns shop").errOut)
}

func TestTree_ShowsOwnersAbovePods(t *testing.T) {
	t.Parallel()
	l := startLive(t)
	l.succeed(t, webManifest, "apply -f -")
	l.succeed(t, "", "rollout status deploy/web --timeout=30s")
	lines := strings.Split(strings.TrimSpace(l.succeed(t, "", "tree deploy/web")), "\n")
	require.Len(t, lines, 5, lines)
	require.Regexp(t, `^Deployment/web +2/2`, lines[1])
	require.Regexp(t, `^└─ReplicaSet/web-\w+ +2/2`, lines[2])
	require.Regexp(t, `^  ├─Pod/web-\w+-\w+ +1/1 +Running`, lines[3])
	require.Regexp(t, `^  └─Pod/web-\w+-\w+ +1/1 +Running`, lines[4])
	require.Equal(t, "Deployment/web is ready.\n", l.succeed(t, "", "why deploy/web"))
}

func TestWhy_NamesThePodThatNoNodeTakes(t *testing.T) {
	t.Parallel()
	l := startLive(t)
	l.succeed(t, webManifest, "apply -f -")
	l.succeed(t, "", "set resources deploy/web --requests=cpu=9000")
	require.Eventually(t, func() bool {
		out := l.run(t, "", "why deploy/web").out
		if !strings.Contains(out, "\nNodes, for Pod/web-") ||
			!strings.Contains(out, "cpu free, of which the pod asks for 9k") {
			return false
		}
		_, cause, _ := strings.Cut(out, "Likely cause:\n")
		first, _, _ := strings.Cut(cause, "\n")
		return strings.Contains(first, "cannot be scheduled") && strings.Contains(first, "Insufficient cpu")
	}, 30*time.Second, 50*time.Millisecond)
}

func TestRolloutStatus_EndsWithOneWhenTheDeadlineIsExceeded(t *testing.T) {
	t.Parallel()
	l := startLive(t, testenv.WithNodes(0))
	l.succeed(t, strings.Replace(webManifest, "replicas: 2", "replicas: 2\n  progressDeadlineSeconds: 1", 1),
		"apply -f -")
	got := l.run(t, "", "rollout status deploy/web --timeout=30s")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errOut, "error: deployment \"web\" exceeded its progress deadline\n")
}

func TestCordon_AndTaintMarkANode(t *testing.T) {
	t.Parallel()
	l := startLive(t, testenv.WithNodes(2))
	l.succeed(t, webManifest, "apply -f -")
	l.succeed(t, "", "rollout status deploy/web --timeout=30s")
	node := l.succeed(t, "", "get nodes -o jsonpath='{.items[0].metadata.name}'")
	require.Equal(t, "node/"+node+" tainted\n", l.succeed(t, "", "taint nodes "+node+" dedicated=db:PreferNoSchedule"))
	require.Equal(t, "node/"+node+" cordoned\n", l.succeed(t, "", "cordon "+node))
	require.Equal(t, "node/"+node+" already cordoned\n", l.succeed(t, "", "cordon "+node))
	require.Equal(t, "node/"+node+" uncordoned\n", l.succeed(t, "", "uncordon "+node))
}
