package kubectllite

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

func TestExec_RunsACommandAndReturnsItsExitCode(t *testing.T) {
	t.Parallel()
	for protocol, onlySPDY := range map[string]bool{"v5.channel.k8s.io": false, "v4.channel.k8s.io": true} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := newStreamServer(t)
			s.onlySPDY = onlySPDY
			require.Equal(t, clitest.Outcome{Out: "out\n", ErrOut: "Defaulted container \"c\" out of: c, side\nerr\n"},
				s.run(t, "", "exec", "web-0", "--", "sh", "-c", "echo out; echo err >&2"))
			require.Equal(t, clitest.Outcome{Code: 3, ErrOut: "command terminated with exit code 3\n"},
				s.run(t, "", "exec", "web-0", "-c", "c", "--", "sh", "-c", "exit 3"))
			require.Equal(t, clitest.Outcome{Out: "said"}, s.run(t, "said", "exec", "-i", "web-0", "-q", "--", "cat"))
			require.Equal(t, clitest.Outcome{}, s.run(t, "unheard", "exec", "web-0", "-q", "--", "cat"),
				"standard input is not passed without -i")
			require.Contains(t, s.protocols(), protocol)
			require.Len(t, s.protocols(), 4)
		})
	}
}

func TestExec_WithoutATerminalHasNoTTY(t *testing.T) {
	t.Parallel()
	s := newStreamServer(t)
	require.Equal(t, clitest.Outcome{Out: "said", ErrOut: "Unable to use a TTY - input is not a terminal or the right kind of file\n"},
		s.run(t, "said", "exec", "-it", "web-0", "-c", "c", "--", "cat"))
}

func TestAttach_ConnectsToTheContainersProcess(t *testing.T) {
	t.Parallel()
	s := newStreamServer(t)
	got := s.run(t, "said", "attach", "-i", "web-0", "-c", "side")
	require.Equal(t, 0, got.Code, got.ErrOut)
	require.Equal(t, "said", got.Out)
	require.Contains(t, got.ErrOut, "If you don't see a command prompt, try pressing enter.\n")
	require.Equal(t, clitest.Outcome{Code: 1, ErrOut: "error: cannot attach to the container: container nope is not valid for pod " +
		"web-0 out of: c, side\n"}, s.run(t, "", "attach", "web-0", "-c", "nope"))
}

func TestCopy_CopiesFoldersInBothDirections(t *testing.T) {
	t.Parallel()
	for name, onlySPDY := range map[string]bool{"WebSocket": false, "SPDY": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStreamServer(t)
			s.onlySPDY = onlySPDY
			here, there := t.TempDir(), t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(here, "conf", "deep", "empty"), 0o755))
			large := strings.Repeat("0123456789abcdef", 1<<16)
			for file, text := range map[string]string{"conf/a": "A", "conf/deep/b": large} {
				require.NoError(t, os.WriteFile(filepath.Join(here, file), []byte(text), 0o600))
			}
			require.NoError(t, os.Symlink("a", filepath.Join(here, "conf", "link")))

			require.Equal(t, clitest.Outcome{}, s.run(t, "", "cp", filepath.Join(here, "conf"), "web-0:"+there, "-c", "c"),
				"into a folder that is there")
			require.Equal(t, "A", readFile(t, there, "conf/a"))
			require.Equal(t, large, readFile(t, there, "conf/deep/b"))
			require.DirExists(t, filepath.Join(there, "conf/deep/empty"))
			link, err := os.Readlink(filepath.Join(there, "conf/link"))
			require.NoError(t, err)
			require.Equal(t, "a", link)
			require.Equal(t, clitest.Outcome{}, s.run(t, "", "cp", filepath.Join(here, "conf", "a"), "default/web-0:"+there+
				"/renamed", "-c", "c"))
			require.Equal(t, "A", readFile(t, there, "renamed"))

			back := filepath.Join(here, "back")
			got := s.run(t, "", "cp", "web-0:"+there+"/conf", back, "-c", "c")
			require.Equal(t, 0, got.Code, got.ErrOut)
			require.Contains(t, got.ErrOut, "warning: skipping symlink")
			require.Equal(t, large, readFile(t, back, "deep/b"))
			got = s.run(t, "", "cp", "web-0:"+there+"/renamed", filepath.Join(here, "one"), "-c", "c", "--retries=2")
			require.Equal(t, 0, got.Code, got.ErrOut)
			require.Equal(t, "A", readFile(t, here, "one"))
			s.run(t, "", "cp", "web-0:"+there+"/nope", filepath.Join(here, "two"), "-c", "c")
			require.NoFileExists(t, filepath.Join(here, "two"))
		})
	}
}

func readFile(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)
	return string(text)
}

func TestPortForward_CarriesConnections(t *testing.T) {
	t.Parallel()
	s := newStreamServer(t)
	out := clitest.StartChild(t, "--kubeconfig", s.kubeconfig(t), "--cache-dir", t.TempDir(), "port-forward", "web-0", ":http",
		"--address=127.0.0.1")
	forwarding := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> 80`)
	require.Eventually(t, func() bool {
		return forwarding.MatchString(out.String())
	}, 30*time.Second, time.Millisecond, out)
	conn, err := net.Dial("tcp", forwarding.FindStringSubmatch(out.String())[1])
	require.NoError(t, err)
	_, err = conn.Write([]byte("quiet"))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "QUIET", string(answer))
	require.Equal(t, clitest.Outcome{Code: 1, ErrOut: "error: Pod 'web-0' does not have a named port 'nope'\n"},
		s.run(t, "", "port-forward", "web-0", "nope"))
}

func TestProxy_AddsCredentialsAndRejectsForeignHosts(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	out := clitest.StartChild(t, "--kubeconfig", f.kubeconfig(t), "proxy", "--port=0")
	serving := regexp.MustCompile(`Starting to serve on (127\.0\.0\.1:\d+)`)
	require.Eventually(t, func() bool {
		return serving.MatchString(out.String())
	}, 30*time.Second, time.Millisecond, out)
	base := "http://" + serving.FindStringSubmatch(out.String())[1]
	get := func(path, host string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		require.NoError(t, err)
		if host != "" {
			req.Host = host
		}
		res, err := (&http.Client{}).Do(req)
		require.NoError(t, err)
		defer res.Body.Close() //nolint:errcheck // it was only read
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, string(text)
	}
	code, text := get("/version", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, kubeversion.Release+"+fake")
	code, _ = get("/version", "evil.example")
	require.Equal(t, http.StatusForbidden, code)
	code, _ = get("/api/v1/namespaces/default/pods/web-0/exec", "")
	require.Equal(t, http.StatusForbidden, code)
}

func TestPlugin_WithTheLongestNameRuns(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kubectl-foo":           `echo "foo: $*"`,
		"kubectl-foo-bar_baz":   `echo "bar-baz: $*"; cat; exit 7`,
		"kubectl-both":          "echo kubectl",
		"kubectl_lite-both":     "echo lite",
		"kubectl-get":           "echo never",
		"kubectl-not-a-program": "",
	} {
		mode := os.FileMode(0o755)
		if text == "" {
			mode = 0o644
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), mode))
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	run := func(stdin string, args ...string) clitest.Outcome {
		out, errOut := &clitest.Buffer{}, &clitest.Buffer{}
		code := Main(t.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(stdin), Out: out,
			ErrOut: errOut})
		return clitest.Outcome{Code: code, Out: out.String(), ErrOut: errOut.String()}
	}
	require.Equal(t, clitest.Outcome{Out: "foo: x --flag\n"}, run("", "foo", "x", "--flag"))
	require.Equal(t, clitest.Outcome{Code: 7, Out: "bar-baz: y\nsaid"}, run("said", "foo", "bar-baz", "y"))
	require.Equal(t, clitest.Outcome{Out: "lite\n"}, run("", "both"))
	require.Equal(t, clitest.Outcome{Code: 1, ErrOut: "error: unknown command \"not-a-program\" for \"kubectl-lite\"\n"},
		run("", "not-a-program"))
	got := run("", "plugin", "list", "--name-only")
	require.Equal(t, 1, got.Code)
	require.Contains(t, got.Out, "kubectl-foo-bar_baz\n")
	require.Contains(t, got.Out, "kubectl_lite-both\n")
	require.Contains(t, got.ErrOut, "kubectl-get overwrites existing command: \"kubectl-lite get\"")
	require.Contains(t, got.ErrOut, "kubectl-not-a-program identified as a kubectl plugin, but it is not executable")
}

func TestCompletion_ProposesObjectsOfTheServer(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "settings").Code)
	require.Zero(t, f.run(t, "", "create", "ns", "shop").Code)
	for _, step := range []struct{ line, offered string }{
		{"__completeNoDesc get conf", "configmaps"},
		{"__completeNoDesc get cm se", "settings"},
		{"__completeNoDesc get cm/", "cm/settings"},
		{"__completeNoDesc get pods --namespace sh", "shop"},
		{"__completeNoDesc get pods --context fa", "fake"},
		{"__completeNoDesc config use-context fa", "fake"},
		{"__completeNoDesc rollout status dep", "deployments/"},
		{"__completeNoDesc completion f", "fish"},
		{"__completeNoDesc roll", "rollout"},
	} {
		words := strings.Fields(step.line)
		got := runAsShell(t, f.kubeconfig(t), words...)
		require.Contains(t, strings.Split(got, "\n"), step.offered, step.line)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		got := f.run(t, "", "completion", shell)
		require.Zero(t, got.Code)
		require.Contains(t, got.Out, "__complete")
	}
}

// runAsShell runs the command of a completion script, with the flags of the connection in the place where a user would
// type them.
func runAsShell(t *testing.T, kubeconfig string, words ...string) string {
	t.Helper()
	out := &clitest.Buffer{}
	args := append([]string{words[0], "--kubeconfig=" + kubeconfig, "--cache-dir=" + t.TempDir()}, words[1:]...)
	require.Zero(t, Main(t.Context(), args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: out,
		ErrOut: io.Discard}))
	return out.String()
}
