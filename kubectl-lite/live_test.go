package kubectllite

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestRollout_FollowsADeploymentToItsRollback(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	l.Succeed(t, clitest.WebManifest, "apply -f -")
	require.Contains(t, l.Succeed(t, "", "rollout status deploy/web --timeout=30s"),
		"deployment \"web\" successfully rolled out\n")
	require.Equal(t, "deployment.apps/web image updated\n", l.Succeed(t, "", "set image deploy/web nginx=nginx:2"))
	require.Contains(t, l.Succeed(t, "", "rollout status deploy/web --timeout=30s"), "successfully rolled out")
	require.Contains(t, l.Succeed(t, "", "rollout history deploy/web"),
		"REVISION  CHANGE-CAUSE\n1         <none>\n2         <none>\n")
	require.Equal(t, "deployment.apps/web rolled back\n", l.Succeed(t, "", "rollout undo deploy/web"))
	require.Contains(t, l.Succeed(t, "", "rollout status deploy/web --timeout=30s"), "successfully rolled out")
	require.Equal(t, "nginx:1",
		l.Succeed(t, "", "get deploy web -o jsonpath='{.spec.template.spec.containers[0].image}'"))
	require.Equal(t, "deployment.apps/web condition met\n",
		l.Succeed(t, "", "wait deploy/web --for=condition=Available --timeout=30s"))
	require.Equal(t, "deployment.apps \"web\" deleted from default namespace\n",
		l.Succeed(t, "", "delete deploy web --cascade=foreground"))
	require.Empty(t, l.Succeed(t, "", "get deploy,rs -o name"))
}

func TestDelete_WaitsUntilANamespaceIsGone(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	l.Succeed(t, "", "create ns shop")
	l.Succeed(t, "", "create deployment web --image=nginx --replicas=3 -n shop")
	l.Succeed(t, "", "rollout status deploy/web -n shop --timeout=30s")
	l.Succeed(t, "", "delete ns shop --timeout=30s")
	require.Equal(t, "Error from server (NotFound): namespaces \"shop\" not found\n",
		l.Run(t, "", "get ns shop").ErrOut)
}

func TestTree_ShowsOwnersAbovePods(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	l.Succeed(t, clitest.WebManifest, "apply -f -")
	l.Succeed(t, "", "rollout status deploy/web --timeout=30s")
	lines := strings.Split(strings.TrimSpace(l.Succeed(t, "", "tree deploy/web")), "\n")
	require.Len(t, lines, 5, lines)
	require.Regexp(t, `^Deployment/web +2/2`, lines[1])
	require.Regexp(t, `^└─ReplicaSet/web-\w+ +2/2`, lines[2])
	require.Regexp(t, `^  ├─Pod/web-\w+-\w+ +1/1 +Running`, lines[3])
	require.Regexp(t, `^  └─Pod/web-\w+-\w+ +1/1 +Running`, lines[4])
	require.Equal(t, "Deployment/web is ready.\n", l.Succeed(t, "", "why deploy/web"))
}

func TestWhy_ExplainsAnUnschedulablePod(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	l.Succeed(t, clitest.WebManifest, "apply -f -")
	l.Succeed(t, "", "set resources deploy/web --requests=cpu=9000")
	require.Eventually(t, func() bool {
		out := l.Run(t, "", "why deploy/web").Out
		if !strings.Contains(out, "\nNodes, for Pod/web-") ||
			!strings.Contains(out, "cpu free, but the pod requests 9k") {
			return false
		}
		_, cause, _ := strings.Cut(out, "Likely cause:\n")
		first, _, _ := strings.Cut(cause, "\n")
		return strings.Contains(first, "cannot be scheduled") && strings.Contains(first, "Insufficient cpu")
	}, 30*time.Second, 50*time.Millisecond)
}

func TestRolloutStatus_FailsWhenTheDeadlineIsExceeded(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.WithNodes(0))
	l.Succeed(t, strings.Replace(clitest.WebManifest, "replicas: 2", "replicas: 2\n  progressDeadlineSeconds: 1", 1),
		"apply -f -")
	got := l.Run(t, "", "rollout status deploy/web --timeout=30s")
	require.Equal(t, 1, got.Code)
	require.Contains(t, got.ErrOut, "error: deployment \"web\" exceeded its progress deadline\n")
}

func TestCordon_AndTaintMarkANode(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.WithNodes(2))
	l.Succeed(t, clitest.WebManifest, "apply -f -")
	l.Succeed(t, "", "rollout status deploy/web --timeout=30s")
	node := l.Succeed(t, "", "get nodes -o jsonpath='{.items[0].metadata.name}'")
	require.Equal(t, "node/"+node+" tainted\n", l.Succeed(t, "", "taint nodes "+node+" dedicated=db:PreferNoSchedule"))
	require.Equal(t, "node/"+node+" cordoned\n", l.Succeed(t, "", "cordon "+node))
	require.Equal(t, "node/"+node+" already cordoned\n", l.Succeed(t, "", "cordon "+node))
	require.Equal(t, "node/"+node+" uncordoned\n", l.Succeed(t, "", "uncordon "+node))
}
