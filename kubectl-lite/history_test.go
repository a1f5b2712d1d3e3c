package kubectllite

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/testenv"
)

// TestHistory asks a server that has the revisions 40 to 100, each a second after the one before, and a Lease that is
// renewed with every tenth.
func TestHistory(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-100 * time.Second)
	second := func(i int64) time.Time { return start.Add(time.Duration(i) * time.Second) }
	client := fake.NewClientset()
	asked := 0
	client.PrependReactor("list", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		revision, err := strconv.ParseInt(action.(clienttesting.ListActionImpl).GetListOptions().ResourceVersion, 10,
			64)
		require.NoError(t, err)
		if revision < 40 {
			return true, nil, apierrors.NewResourceExpired("compacted")
		}
		renewed := metav1.NewMicroTime(second(revision / 10 * 10))
		lease := coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
		return true, &coordinationv1.LeaseList{Items: []coordinationv1.Lease{lease}}, nil
	})
	h := &history{client: client, newest: 100}

	oldest, err := h.oldest(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 40, oldest)

	then, err := h.at(t.Context(), second(67))
	require.NoError(t, err)
	require.EqualValues(t, 69, then.revision, "the last one before the Lease tells of a later time")
	require.True(t, then.from.Equal(second(60)) && then.to.Equal(second(70)), "%v", then)
	require.Less(t, asked, 40, "questions grow with the logarithm")

	then, err = h.at(t.Context(), second(200))
	require.NoError(t, err)
	require.Equal(t, "revision 100, the present", then.String())

	_, err = h.at(t.Context(), second(20))
	require.ErrorContains(t, err, "does not reach back so far: it begins with revision 40")
}

// lease renews a Lease that dates revisions, as a leader would.
func (l live) lease(t *testing.T, ago time.Duration) {
	t.Helper()
	l.succeed(t, fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: leader, "+
		"namespace: kube-system}, spec: {holderIdentity: me, renewTime: %q}}",
		time.Now().Add(-ago).UTC().Format(metav1.RFC3339Micro)), "apply -f -")
}

func TestGet_ShowsThePast(t *testing.T) {
	t.Parallel()
	began := time.Now()
	// of the Lease by which the server says that it is there
	serverClock := clocktesting.NewFakeClock(began.Add(-time.Hour))
	l := startLive(t, testenv.APIServerOnly(), testenv.WithClock(serverClock))
	since := func(ago time.Duration) {
		serverClock.SetTime(began.Add(-ago))
		l.lease(t, ago)
	}
	since(time.Hour)
	l.succeed(t, "", "create cm settings --from-literal=mode=fast")
	since(30 * time.Minute)
	l.succeed(t, "", `patch cm settings -p '{"data":{"mode":"slow"}}'`)
	l.succeed(t, "", "create cm another")
	since(10 * time.Minute)
	l.succeed(t, "", "delete cm settings")
	since(time.Minute)

	for ago, mode := range map[string]string{"45m": "fast", "20m": "slow"} {
		require.Equal(t, mode, l.succeed(t, "", "get cm settings -o jsonpath={.data.mode} --at "+ago))
		require.Equal(t, mode, l.succeed(t, "", "get cm/settings -o jsonpath={.data.mode} --at "+ago))
	}
	require.Equal(t, "configmap/settings\n", l.succeed(t, "", "get cm -o name --at 45m"))
	require.Equal(t, "configmap/another\nconfigmap/settings\n",
		l.succeed(t, "", "get cm -o name --at "+time.Now().Add(-20*time.Minute).Format(time.RFC3339)))
	table := l.run(t, "", "get cm/settings --at 20m")
	require.Regexp(t, `^NAME +DATA +AGE\nsettings +1 `, table.out)
	require.Regexp(t, `^As of revision \d+, between .* and .*:\n$`, table.errOut)

	for line, refusal := range map[string]string{
		"get cm settings --at 5m":       `configmaps "settings" not found`,
		"get cm settings --at 2h":       "does not reach back so far",
		"get cm settings --at tomorrow": "neither a duration",
		"get cm -w --at 5m":             "can not be watched",
		"get cm a b --at 5m":            "exactly one object is required",
	} {
		got := l.run(t, "", line)
		require.Equal(t, 1, got.code, line)
		require.Contains(t, got.errOut, refusal, line)
	}
}

// The past of a namespace begins with its creation, which may be later than the server's history does.
func TestThePast_OfAYoungNamespace(t *testing.T) {
	t.Parallel()
	began := time.Now()
	serverClock := clocktesting.NewFakeClock(began.Add(-time.Hour))
	l := startLive(t, testenv.APIServerOnly(), testenv.WithClock(serverClock))
	l.lease(t, time.Hour)
	l.succeed(t, "", "create ns young")
	serverClock.SetTime(began.Add(-30 * time.Minute))
	l.lease(t, 30*time.Minute)
	l.succeed(t, "", "create cm a -n young")
	serverClock.SetTime(began)
	l.lease(t, 0)
	require.Regexp(t, `^revision \d+  created by unknown  `, l.succeed(t, "", "timeline cm/a -n young"))
	require.Equal(t, "configmap/a\n", l.succeed(t, "", "get cm -o name -n young --at 20m"))
}

func TestTimeline_TellsWhatChanged(t *testing.T) {
	t.Parallel()
	l := startLive(t, testenv.APIServerOnly())
	l.succeed(t, webManifest, "apply -f -")
	l.succeed(t, "", "set image deploy/web nginx=nginx:2 --field-manager=oncall")
	l.succeed(t, "", "label deploy web tier=front")
	paragraphs := strings.Split(l.succeed(t, "", "timeline deploy/web"), "\n\n")
	require.Len(t, paragraphs, 3)
	require.Regexp(t, `^revision \d+  created by kubectl-client-side-apply  \d{4}-`, paragraphs[0])
	require.Regexp(t,
		`^revision \d+  changed by oncall  .*\n  ~ spec.template.spec.containers\[nginx\].image: nginx:1 → nginx:2$`,
		paragraphs[1])
	require.Regexp(t, `^revision \d+  changed by kubectl-label  .*\n  \+ metadata.labels.tier: front\n$`, paragraphs[2])

	l.succeed(t, "", "create secret generic keys --from-literal=token=hidden")
	l.succeed(t, "", `patch secret keys -p '{"stringData":{"token":"veiled"}}'`)
	l.succeed(t, "", "delete secret keys")
	told := l.succeed(t, "", "timeline secret keys")
	require.Contains(t, told, "~ data.token: *** (before) → *** (after)\n")
	require.Regexp(t, `\nrevision \d+  deleted by unknown  after \d{4}-\S+ \S+ \(\S+ ago\)\n$`, told)

	for _, value := range []string{"disguised", "camouflaged"} {
		l.succeed(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: applied}\nstringData: {token: "+value+"}\n", "apply -f -")
	}
	told = l.succeed(t, "", "timeline secret applied")
	require.Contains(t, told,
		"~ metadata.annotations.kubectl.kubernetes.io/last-applied-configuration: *** (before) → *** (after)\n")
	require.NotContains(t, told, "disguised")
	require.NotContains(t, told, "camouflaged")

	l.succeed(t, "", "create cm fast --from-literal=a=0")
	for i := range 5 { // within a second, so that the manager's entry stays the same
		l.succeed(t, "", fmt.Sprintf(`patch cm fast -p '{"data":{"a":"%d"}}' --field-manager=hasty`, i+1))
	}
	told = l.succeed(t, "", "timeline cm fast")
	require.Equal(t, 5, strings.Count(told, "  changed by hasty  "), told)
	for _, paragraph := range strings.Split(told, "\n\n") {
		require.Regexp(t, `^revision \d+  \w+ by [\w-]+  (after )?\d{4}-\S+ \S+ \(\S+ ago\)`, paragraph)
	}

	require.Contains(t, l.run(t, "", "timeline secret nope").errOut, `secrets "nope" not found`)
	require.Contains(t, l.run(t, "", "timeline nopes x").errOut, `doesn't have a resource type "nopes"`)
	require.Contains(t, l.run(t, "", "timeline secrets").errOut, "exactly one object is required")
}

func TestDeltas(t *testing.T) {
	t.Parallel()
	object := func(text string) map[string]any {
		var v map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(text), &v))
		return v
	}
	var got []string
	for _, d := range deltas("",
		object("{a: 1, l: [{name: x, v: 1}, {name: y}], p: [1, 2], m: {k: v}, gone: {deep: true}}"),
		object("{a: 2, l: [{name: y}, {name: x, v: 3}], p: [1, 3, 4], m: {k: v, o: w}, new: [1]}")) {
		got = append(got, d.String())
	}
	require.Equal(t, []string{
		"~ a: 1 → 2",
		`- gone: {"deep":true}`,
		"~ l[x].v: 1 → 3",
		"+ m.o: w",
		"+ new: [1]",
		"~ p[1]: 2 → 3",
		"+ p[2]: 4",
	}, got)
}
