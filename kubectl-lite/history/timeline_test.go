package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

// The past of a namespace begins with its creation, which may be later than the beginning of the server's history.
func TestTimeline_OfAYoungNamespace(t *testing.T) {
	t.Parallel()
	began := time.Now()
	serverClock := clocktesting.NewFakeClock(began.Add(-time.Hour))
	l := clitest.Start(t, testenv.APIServerOnly(), testenv.WithClock(serverClock))
	l.RenewLease(t, time.Hour)
	l.Succeed(t, "", "create ns young")
	serverClock.SetTime(began.Add(-30 * time.Minute))
	l.RenewLease(t, 30*time.Minute)
	l.Succeed(t, "", "create cm a -n young")
	serverClock.SetTime(began)
	l.RenewLease(t, 0)
	require.Regexp(t, `^revision \d+  created by unknown  `, l.Succeed(t, "", "timeline cm/a -n young"))
	require.Equal(t, "configmap/a\n", l.Succeed(t, "", "get cm -o name -n young --at 20m"))
}

func TestTimeline_ShowsChanges(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	l.Succeed(t, clitest.WebManifest, "apply -f -")
	l.Succeed(t, "", "set image deploy/web nginx=nginx:2 --field-manager=oncall")
	l.Succeed(t, "", "label deploy web tier=front")
	paragraphs := strings.Split(l.Succeed(t, "", "timeline deploy/web"), "\n\n")
	require.Len(t, paragraphs, 3)
	require.Regexp(t, `^revision \d+  created by kubectl-client-side-apply  \d{4}-`, paragraphs[0])
	require.Regexp(t,
		`^revision \d+  changed by oncall  .*\n  ~ spec.template.spec.containers\[nginx\].image: nginx:1 → nginx:2$`,
		paragraphs[1])
	require.Regexp(t, `^revision \d+  changed by kubectl-label  .*\n  \+ metadata.labels.tier: front\n$`, paragraphs[2])

	l.Succeed(t, "", "create secret generic keys --from-literal=token=hidden")
	l.Succeed(t, "", `patch secret keys -p '{"stringData":{"token":"veiled"}}'`)
	l.Succeed(t, "", "delete secret keys")
	output := l.Succeed(t, "", "timeline secret keys")
	require.Contains(t, output, "~ data.token: *** (before) → *** (after)\n")
	require.Regexp(t, `\nrevision \d+  deleted by unknown  after \d{4}-\S+ \S+ \(\S+ ago\)\n$`, output)

	for _, value := range []string{"disguised", "camouflaged"} {
		l.Succeed(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: applied}\nstringData: {token: "+value+"}\n", "apply -f -")
	}
	output = l.Succeed(t, "", "timeline secret applied")
	require.Contains(t, output,
		"~ metadata.annotations.kubectl.kubernetes.io/last-applied-configuration: *** (before) → *** (after)\n")
	require.NotContains(t, output, "disguised")
	require.NotContains(t, output, "camouflaged")

	l.Succeed(t, "", "create cm fast --from-literal=a=0")
	for i := range 5 { // within a second, so that the manager's entry stays the same
		l.Succeed(t, "", fmt.Sprintf(`patch cm fast -p '{"data":{"a":"%d"}}' --field-manager=hasty`, i+1))
	}
	output = l.Succeed(t, "", "timeline cm fast")
	require.Equal(t, 5, strings.Count(output, "  changed by hasty  "), output)
	for _, paragraph := range strings.Split(output, "\n\n") {
		require.Regexp(t, `^revision \d+  \w+ by [\w-]+  (after )?\d{4}-\S+ \S+ \(\S+ ago\)`, paragraph)
	}

	require.Contains(t, l.Run(t, "", "timeline secret nope").ErrOut, `secrets "nope" not found`)
	require.Contains(t, l.Run(t, "", "timeline nopes x").ErrOut, `doesn't have a resource type "nopes"`)
	require.Contains(t, l.Run(t, "", "timeline secrets").ErrOut, "exactly one object is required")
}
