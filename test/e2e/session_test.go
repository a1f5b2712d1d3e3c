//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the sessions in testdata")

// TestKubectl_Sessions runs the sessions in testdata/kubectl/*.session in a shell and compares kubectl's output. A
// session is written like a terminal: "$ " before a command, "> " before its further lines, then the output; "[exit N]"
// follows if the exit code is not 0.
//
// Values that differ each time are written as <age>, <hash>, <ip> and so on; "…" in a line matches
// anything, for texts that differ between releases of kubectl.
func TestKubectl_Sessions(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/kubectl/*.session")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".session"), func(t *testing.T) {
			t.Parallel()
			s := newSession(t)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var anew strings.Builder
			steps := parseSession(string(text))
			require.NotEmpty(t, steps)
			for _, step := range steps {
				have := s.run(step.command)
				anew.WriteString(step.head + have)
				if !*update {
					require.True(t, matches(step.want, have), "$ %s\n--- want\n%s--- have\n%s", step.command,
						step.want, have)
				}
			}
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(anew.String()), 0o644))
			}
		})
	}
}

// step is one command of a session.
type step struct {
	head    string // as written in the file
	command string
	want    string
}

func parseSession(text string) []step {
	var steps []step
	for line := range strings.Lines(text) {
		last := len(steps) - 1
		switch {
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{head: line, command: line[2:]})
		case last >= 0 && strings.HasPrefix(line, "> ") && steps[last].want == "":
			steps[last].head += line
			steps[last].command += line[2:]
		case last >= 0:
			steps[last].want += line
		}
	}
	return steps
}

// matches compares line by line; "…" in want is anything within the line.
func matches(want, have string) bool {
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")
	if len(w) != len(h) {
		return false
	}
	for i := range w {
		parts := strings.Split(w[i], "…")
		for j := range parts {
			parts[j] = regexp.QuoteMeta(parts[j])
		}
		if !regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(h[i]) {
			return false
		}
	}
	return true
}

// session is a shell in a folder of its own, with its own cluster.
type session struct {
	t       *testing.T
	cluster *cluster
	dir     string
}

func newSession(t *testing.T) *session {
	t.Helper()
	c := up(t, dataDir(t), "--nodes", "2")
	c.nodesReady(2)
	s := &session{t: t, cluster: c, dir: t.TempDir()}
	for name, program := range map[string]string{"kubectl": kubectl, "kubectl-lite": kubectlLite} {
		absolute, err := filepath.Abs(program)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "bin"), 0o755))
		require.NoError(t, os.Symlink(absolute, filepath.Join(s.dir, "bin", name)))
	}
	return s
}

// run runs one command and returns the text that a terminal would show.
func (s *session) run(command string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.kubeconfig, "HOME="+s.cluster.home,
		"PATH="+filepath.Join(s.dir, "bin")+":"+os.Getenv("PATH"), "TERM=dumb")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := s.plain(out.String())
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return text + fmt.Sprintf("[exit %d]\n", exit.ExitCode())
	}
	require.NoError(s.t, err, "%s\n%s", command, text)
	return text
}

// shapes replace values that differ each time.
var shapes = []struct {
	of  *regexp.Regexp
	out string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "<time>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC`), "<time>"},
	{regexp.MustCompile(`\b(\w{3}, )?\d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}`), "<time>"},
	{regexp.MustCompile(`\b[0-9bcdf]{6,10}-[b-df-hj-np-tv-z2-9]{5}\b`), "<hash>-<hash>"},
	{regexp.MustCompile(`(pod-template-hash=|-)[0-9bcdf]{8,10}\b`), "$1<hash>"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "<ip>"},
	{regexp.MustCompile(`https://127\.0\.0\.1:\d+`), "<server>"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(s|ms|m\d+s)\b( \(x\d+ over \d+s\))?`), "<age>"},
	{regexp.MustCompile(`(resourceVersion"?: )"\d+"`), "${1}<rv>"},
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
	{tooEarly, ""},
	// Lines that kubectl prints since 1.33.
	{regexp.MustCompile(`(?m)^Warning: resource .* was previously managed with 'kubectl apply'\..*\n`), ""},
	{regexp.MustCompile(
		`(?m)^(Time Zone|Service Name|Pod Management Policy|Persistent Volume Claim Retention Policy|  When(Deleted|Scaled)):.*\n`), ""},
	{regexp.MustCompile(`(?m)^Namespace:.*\n(Selector:.*\nNode-Selector:)`), "$1"}, // of a DaemonSet
	// The widths of columns depend on their content.
	{regexp.MustCompile(`(\S) {2,}`), "$1   "},
}

func (s *session) plain(text string) string {
	text = strings.ReplaceAll(text, s.dir, "<dir>")
	for _, shape := range shapes {
		text = shape.of.ReplaceAllString(text, shape.out)
	}
	return text
}
