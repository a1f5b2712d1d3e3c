package kubectllite

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/testenv"
)

var colorSequence = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestColor_IsPutIntoWhatWasMadeVisible(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		paint        painter
		plain, wants string
	}{
		"pods": {paintTable(),
			"NAME   READY   STATUS    RESTARTS   AGE\nRunning   1/1     Running   0          1s\nb      0/1     " +
				"Pending   0          1s\nc      1/2     Error     0          1s\nä\x1b[31m      1/2     Error    " +
				" 0          1s\n",
			"\x1b[1mNAME   READY   STATUS    RESTARTS   AGE\x1b[0m\nRunning   1/1     Running   0          1s\n" +
				"b      \x1b[31m0/1\x1b[0m     \x1b[33mPending\x1b[0m   0          1s\nc      \x1b[33m1/2\x1b[0m  " +
				"   \x1b[31mError\x1b[0m     0          1s\nä^[[31m      1/2     Error     0          1s\n"},
		"two tables": {paintTable(),
			"NAME    STATUS   ROLES\nnode    Ready    <none>\n\nNAME    STATUS\nclaim   Lost\n\nplain text\nclaim " +
				"  Lost\n",
			"\x1b[1mNAME    STATUS   ROLES\x1b[0m\nnode    \x1b[32mReady\x1b[0m    <none>\n\n\x1b[1mNAME    " +
				"STATUS\x1b[0m\nclaim   \x1b[31mLost\x1b[0m\n\nplain text\nclaim   Lost\n"},
		"tree": {paintTable(),
			"NAME         READY   STATUS    AGE\nDeploy/web   1/1     -         1s\n└─Pod/web    1/1     Running   1s\n",
			"\x1b[1mNAME         READY   STATUS    AGE\x1b[0m\nDeploy/web   \x1b[32m1/1\x1b[0m     -         " +
				"1s\n└─Pod/web    \x1b[32m1/1\x1b[0m     \x1b[32mRunning\x1b[0m   1s\n"},
		"why": {paintWhy(), "Pod/a is not ready (0/1).\n\nLikely cause:\n  Pod/a waits\n\nAlso:\n  more\n",
			"\x1b[1;31mPod/a is not ready (0/1).\x1b[0m\n\n\x1b[1mLikely cause:\x1b[0m\n\x1b[31m  Pod/a " +
				"waits\x1b[0m\n\n\x1b[1mAlso:\x1b[0m\n  more\n"},
		"timeline": {paintTimeline(), "revision 1  created by a\n  + x: y\n  - x: y\n  ~ x: y → z\n",
			"\x1b[1mrevision 1  created by a\x1b[0m\n\x1b[32m  + x: y\x1b[0m\n\x1b[31m  - x: y\x1b[0m\n\x1b[33m  " +
				"~ x: y → z\x1b[0m\n"},
		"a line without an end": {paintTimeline(), "revision 1", "revision 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			w := &visibleWriter{to: &out, paint: c.paint}
			for i := range len(c.plain) { // however it is cut
				n, err := w.Write([]byte(c.plain[i : i+1]))
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			w.finish()
			require.Equal(t, c.wants, out.String())
			require.Equal(t, visible(c.plain), colorSequence.ReplaceAllString(out.String(), ""),
				"nothing but colours is added")
		})
	}
}

// A pipe gets none unless it is asked for; documents never do.
func TestColor_IsForTerminals(t *testing.T) {
	t.Parallel()
	l := startLive(t, testenv.APIServerOnly())
	l.succeed(t, "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}",
		"create -f -")
	ages := regexp.MustCompile(` *\b\d+m?\d*s\b`)
	for _, line := range []string{"get pods", "get nodes,pods -A", "tree pod/a", "why pod/a", "timeline pod/a",
		"why -n default"} {
		run := func(line string) string { return ages.ReplaceAllString(l.run(t, "", line).out, "age") }
		plain := run(line)
		require.NotContains(t, plain, "\x1b", line)
		require.Equal(t, plain, run(line+" --color=never"), line)
		colored := run(line + " --color=always")
		require.Contains(t, colored, "\x1b[1", line)
		require.Equal(t, plain, colorSequence.ReplaceAllString(colored, ""), line)
	}
	for _, line := range []string{"get pod a -o json", "get pod a -o yaml", "get pods -o name",
		"get pods -o jsonpath={.items[0].metadata.name}", "why pod/a -o json"} {
		require.NotContains(t, l.run(t, "", line+" --color=always").out, "\x1b", line)
	}
	require.Contains(t, l.run(t, "", "get pods --color=sometimes").errOut,
		"--color must be 'auto', 'always' or 'never'")

	for _, c := range []struct {
		args    []string
		colored bool
	}{{[]string{"get", "pods"}, true}, {[]string{"get", "pods", "--color=never"}, false},
		{[]string{"get", "pods", "-w"}, true}} {
		term := openTerminal(t, 100, 10, append([]string{"--kubeconfig", l.kubeconfig, "--cache-dir", l.cache},
			c.args...)...)
		term.see("the pod", func(lines []string) bool { return len(lines) > 1 && strings.HasPrefix(lines[1], "a ") })
		require.Eventually(t, func() bool {
			term.mu.Lock()
			defer term.mu.Unlock()
			return strings.Contains(term.raw.String(), "\x1b[33mPending\x1b[0m") == c.colored
		}, 10*time.Second, 10*time.Millisecond, c.args)
	}
}
