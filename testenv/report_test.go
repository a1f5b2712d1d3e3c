package testenv_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// failedTest is a testing.TB of a failed test.
type failedTest struct {
	testing.TB
	cleanups []func()
	logged   []string
}

func (f *failedTest) Failed() bool           { return true }
func (f *failedTest) Cleanup(cleanup func()) { f.cleanups = append(f.cleanups, cleanup) }
func (f *failedTest) Log(args ...any)        { f.logged = append(f.logged, args[0].(string)) }

func TestReport_IsLoggedWhenATestFails(t *testing.T) {
	t.Parallel()
	failed := &failedTest{TB: t}
	env := testenv.StartEnvironment(failed, testenv.WithPodBehavior(func(_ *corev1.Pod, script *testenv.PodScript) {
		script.ImagePullError = errors.New("manifest unknown")
	}))
	client := kubernetes.NewForConfigOrDie(env.User("operator", "system:masters"))
	_, err := client.AppsV1().Deployments("default").Create(t.Context(), deployment("web", 2), metav1.CreateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *collect) {
		events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{
			FieldSelector: "reason=Failed"})
		require.NoError(c, err)
		require.NotEmpty(c, events.Items)
	}, longEnough, tick)
	_, err = client.CoreV1().ConfigMaps("default").Update(t.Context(), configMap("missing"), metav1.UpdateOptions{})
	require.Error(t, err)
	// Faults apply to the code under test: the report must be made nevertheless.
	env.Inject(testenv.Fault{Err: errors.New("nothing works")})
	for _, cleanup := range failed.cleanups {
		cleanup()
	}
	require.Len(t, failed.logged, 1)
	report := failed.logged[0]
	require.Contains(t, report, "container web cannot get its image")
	require.Contains(t, report, "manifest unknown")
	require.Contains(t, report, " Warning Failed Pod/web-")
	require.Contains(t, report, "update configmaps default/missing: 404")
	require.Less(t, strings.Count(report, "\n"), 90)
}

func TestReport_UsesTheEnvironmentsClock(t *testing.T) {
	t.Parallel()
	clock := testenv.NewClock(time.Date(2131, 5, 1, 8, 0, 0, 0, time.UTC))
	env := testenv.StartEnvironment(t, testenv.WithFakeTime(clock), testenv.WithNodes(0))
	_, err := kubernetes.NewForConfigOrDie(env.Config).AppsV1().Deployments("default").Create(t.Context(),
		deployment("web", 1), metav1.CreateOptions{})
	require.NoError(t, err)
	clock.Step(time.Minute)
	require.Contains(t, env.Report(t.Context()), "FailedScheduling 60s ago")
}

func TestReport_WorksWithoutTheAPIServer(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly())
	maps := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")
	for range 100 {
		_, err := maps.Get(t.Context(), "missing", metav1.GetOptions{})
		require.Error(t, err)
	}
	require.NoError(t, env.StopAPIServer())
	report := env.Report(t.Context())
	require.Contains(t, report, "Last Events: not known: ")
	require.Equal(t, 30, strings.Count(report, "get configmaps default/missing: 404"))
	require.Contains(t, report, "Of 100 calls, 100 failed, 0 were conflicts, and 0 writes changed nothing.")
}
