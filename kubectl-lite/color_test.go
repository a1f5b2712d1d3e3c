package kubectllite

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

var colorSequence = regexp.MustCompile("\x1b\\[[0-9;]*m")

// A pipe gets colours only with --color=always; documents never do.
func TestColor_IsOnlyForTerminals(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	l.Succeed(t, "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}",
		"create -f -")
	ages := regexp.MustCompile(` *\b\d+m?\d*s\b`)
	for _, line := range []string{"get pods", "get nodes,pods -A", "tree pod/a", "why pod/a", "timeline pod/a",
		"why -n default"} {
		run := func(line string) string { return ages.ReplaceAllString(l.Run(t, "", line).Out, "age") }
		plain := run(line)
		require.NotContains(t, plain, "\x1b", line)
		require.Equal(t, plain, run(line+" --color=never"), line)
		colored := run(line + " --color=always")
		require.Contains(t, colored, "\x1b[1", line)
		require.Equal(t, plain, colorSequence.ReplaceAllString(colored, ""), line)
	}
	for _, line := range []string{"get pod a -o json", "get pod a -o yaml", "get pods -o name",
		"get pods -o jsonpath={.items[0].metadata.name}", "why pod/a -o json"} {
		require.NotContains(t, l.Run(t, "", line+" --color=always").Out, "\x1b", line)
	}
	require.Contains(t, l.Run(t, "", "get pods --color=sometimes").ErrOut,
		"--color must be 'auto', 'always' or 'never'")

	for _, c := range []struct {
		args    []string
		colored bool
	}{{[]string{"get", "pods"}, true}, {[]string{"get", "pods", "--color=never"}, false},
		{[]string{"get", "pods", "-w"}, true}} {
		term := openTerminal(t, 100, 10, append([]string{"--kubeconfig", l.Kubeconfig, "--cache-dir", l.Cache},
			c.args...)...)
		term.see("the pod", func(lines []string) bool { return len(lines) > 1 && strings.HasPrefix(lines[1], "a ") })
		require.Eventually(t, func() bool {
			term.mu.Lock()
			defer term.mu.Unlock()
			return strings.Contains(term.raw.String(), "\x1b[33mPending\x1b[0m") == c.colored
		}, 10*time.Second, 10*time.Millisecond, c.args)
	}
}
