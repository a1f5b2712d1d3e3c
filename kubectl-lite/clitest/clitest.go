// Package clitest runs kubectl-lite in tests of the packages that it is made of: against a control plane of the test's
// own, in this process or in one of its own.
//
//	func TestMain(m *testing.M) { clitest.Main(m, kubectllite.Main) }
//
//	func TestWhy(t *testing.T) {
//		l := clitest.Start(t)
//		l.Succeed(t, clitest.WebManifest, "apply -f -")
//	}
package clitest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/kuberc"

	"github.com/coxswain-dev/coxswain/testenv"
)

// ChildVariable is an environment variable that makes the test's binary behave as kubectl-lite, for invocations that
// need a process of their own: a terminal, for example, sends its signals to processes.
const ChildVariable = "KUBECTL_LITE_CHILD"

// tool is kubectllite.Main. Main sets it: this package cannot import kubectllite, because kubectllite's own tests
// import this package.
var tool func(context.Context, []string, genericiooptions.IOStreams) int

// Main runs the tests of a package, for its TestMain. main is kubectllite.Main.
func Main(m *testing.M, main func(context.Context, []string, genericiooptions.IOStreams) int) {
	tool = main
	kuberc.RecommendedKubeRCFile = filepath.Join(os.DevNull, "none") // not the user's
	if os.Getenv(ChildVariable) != "" {
		os.Exit(main(context.Background(), os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout,
			ErrOut: os.Stderr}))
	}
	// an editor without a user, for kubectl too; the call never fails
	_ = os.Setenv("KUBE_EDITOR", "sed -i s/before/after/")
	os.Exit(m.Run())
}

// Outcome is the result of one invocation.
type Outcome struct {
	Code        int
	Out, ErrOut string
}

// Run runs one invocation: in this process if its streams allow it.
func Run(t *testing.T, ctx context.Context, kubeconfig, stdin string, args ...string) Outcome {
	t.Helper()
	all := append([]string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + t.TempDir()}, args...)
	// kubectl's own commands read the process's standard input, and cp ends the process
	if slices.Contains(args, "-") || slices.Contains(args, "cp") {
		return runChild(t, ctx, stdin, all...)
	}
	var out, errOut Buffer // a session writes to both at once
	code := tool(ctx, all, genericiooptions.IOStreams{In: strings.NewReader(stdin), Out: &out, ErrOut: &errOut})
	return Outcome{code, out.String(), errOut.String()}
}

// runChild runs one invocation in a process of its own.
func runChild(t *testing.T, ctx context.Context, stdin string, args ...string) Outcome {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), ChildVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return Outcome{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// StartChild starts an invocation in its own process, which lasts until the test ends, and returns its output.
func StartChild(t *testing.T, args ...string) *Buffer {
	t.Helper()
	out := &Buffer{}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), ChildVariable+"=1")
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()         // it was killed
	})
	return out
}

// Buffer may be read while a command writes to it.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// WebManifest is a Deployment with two pods, and a ConfigMap.
const WebManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: nginx, image: "nginx:1"}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {mode: fast}
`

// Live runs invocations against a whole control plane, with nodes on which pods start.
type Live struct {
	Kubeconfig string
	Cache      string
}

// Start starts a control plane that lasts as long as the test.
func Start(t *testing.T, opts ...testenv.Option) Live {
	t.Helper()
	dir := t.TempDir()
	l := Live{filepath.Join(dir, "config"), filepath.Join(dir, "cache")}
	require.NoError(t, WriteKubeconfig(testenv.Start(t, opts...), l.Kubeconfig))
	return l
}

// Run runs an invocation. Spaces separate its words (SplitWords).
func (l Live) Run(t *testing.T, stdin, line string) Outcome {
	t.Helper()
	return Run(t, t.Context(), l.Kubeconfig, stdin,
		append([]string{"--cache-dir=" + l.Cache}, SplitWords(line)...)...)
}

// Succeed runs an invocation that must succeed, and returns its output.
func (l Live) Succeed(t *testing.T, stdin, line string) string {
	t.Helper()
	got := l.Run(t, stdin, line)
	require.Zero(t, got.Code, "%s: %s", line, got.ErrOut)
	return got.Out
}

// RenewLease renews a Lease like a leader, so that it dates revisions.
func (l Live) RenewLease(t *testing.T, ago time.Duration) {
	t.Helper()
	l.Succeed(t, fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: leader, "+
		"namespace: kube-system}, spec: {holderIdentity: me, renewTime: %q}}",
		time.Now().Add(-ago).UTC().Format(metav1.RFC3339Micro)), "apply -f -")
}

// WriteKubeconfig writes a kubeconfig with the connection and credentials of config.
func WriteKubeconfig(config *rest.Config, path string) error {
	return clientcmd.WriteToFile(*KubeconfigFor(config), path)
}

// KubeconfigFor returns a kubeconfig with the connection and credentials of config.
func KubeconfigFor(config *rest.Config) *clientcmdapi.Config {
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData,
		ClientKeyData: config.KeyData}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	return file
}

// SplitWords splits a line like a shell that only knows single quotes.
func SplitWords(line string) []string {
	var words []string
	var word strings.Builder
	quoted, started := false, false
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				words = append(words, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if started {
		words = append(words, word.String())
	}
	return words
}

// HostileText sets a terminal's title, clears it, changes the colour with C1, writes from right to left and overwrites
// the line.
const HostileText = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202eevil\u2066\x7f\r\x08\x00\x0b\x0c\x1b[1A end"

// RequireVisible fails if text has a character that controls a terminal.
func RequireVisible(t *testing.T, text string, about ...any) {
	t.Helper()
	require.True(t, utf8.ValidString(text), about...)
	for _, r := range text {
		bad := r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r <= 0x9f || r >= 0x2028 && r <= 0x202e ||
			r >= 0x2066 && r <= 0x2069
		require.False(t, bad, "%q has %q in it: %v", text, r, about)
	}
}
