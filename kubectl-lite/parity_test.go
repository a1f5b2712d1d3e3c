package kubectllite

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/testenv"
)

var record = flag.Bool("record", false, "write what the real kubectl does to testdata/parity.json")

// recordedPath holds what the real kubectl did, for machines that have none.
const recordedPath = "testdata/parity.json"

// parityOutcome is what one invocation did, with names, times and the like made equal.
type parityOutcome struct {
	Args   string `json:"args"`
	Code   int    `json:"code"`
	Out    string `json:"out"`
	ErrOut string `json:"errOut,omitempty"`
}

// TestParity runs the same invocations, in the same order, by kubectl and by kubectl-lite, each on a control plane of its
// own, and compares what they print, how they end, and what the servers hold afterwards.
func TestParity(t *testing.T) {
	t.Parallel()
	ours := runParity(t, testenv.Start(t, testenv.APIServerOnly()), liteRunner)
	theirs, live := theirParity(t)
	require.Len(t, ours, len(theirs), "the recording is out of date: run with -record where kubectl is on the PATH")
	for i := range ours {
		want, got := theirs[i], ours[i]
		if _, known := knownDifferences[got.Args]; known {
			assert.NotEqual(t, want, got, "%s: the difference is gone; take it off the list", got.Args)
			continue
		}
		assert.Equal(t, want, got, got.Args)
	}
	if *record && live {
		text, err := json.MarshalIndent(theirs, "", " ")
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(recordedPath, append(text, '\n'), 0o644))
	}
}

// theirParity is what the real kubectl does, now or as it was recorded.
func theirParity(t *testing.T) (outcomes []parityOutcome, live bool) {
	t.Helper()
	if kubectl := realKubectl(); kubectl != "" {
		return runParity(t, testenv.Start(t, testenv.APIServerOnly()), kubectlRunner(kubectl)), true
	}
	t.Log("no kubectl on the PATH: comparing with what was recorded")
	text, err := os.ReadFile(recordedPath)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &outcomes))
	return outcomes, false
}

// realKubectl is the kubectl on the PATH, or empty. Google's SDK puts a dispatcher there, which reads flags itself; the newest
// of the kubectls beside it is the real one.
func realKubectl() string {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return ""
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		if beside, _ := filepath.Glob(target + ".1.*"); len(beside) > 0 {
			return beside[len(beside)-1]
		}
	}
	return path
}

type parityRunner func(t *testing.T, kubeconfig, dir, stdin string, args []string) outcome

func liteRunner(t *testing.T, kubeconfig, dir, stdin string, args []string) outcome {
	return runWith(t, t.Context(), kubeconfig, stdin, append([]string{"--cache-dir=" + filepath.Join(dir, "cache")}, args...)...)
}

func kubectlRunner(path string) parityRunner {
	return func(t *testing.T, kubeconfig, dir, stdin string, args []string) outcome {
		var out, errOut bytes.Buffer
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+kubeconfig, "KUBECTL_KUBERC=false")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("run kubectl: %v", err)
		}
		return outcome{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
	}
}

func runParity(t *testing.T, config *rest.Config, run parityRunner) []parityOutcome {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "config")
	require.NoError(t, writeKubeconfig(config, kubeconfig))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "app.conf"), []byte("mode=fast\n"), 0o600))
	var all []parityOutcome
	for _, step := range paritySteps {
		args := splitWords(strings.ReplaceAll(step.args, "DIR", dir))
		got := run(t, kubeconfig, dir, step.stdin, args)
		all = append(all, parityOutcome{
			Args: step.args, Code: got.code,
			Out: normalize(got.out, dir, config.Host), ErrOut: normalize(got.errOut, dir, config.Host),
		})
	}
	return all
}

func writeKubeconfig(config *rest.Config, path string) error {
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	return clientcmd.WriteToFile(*file, path)
}

// splitWords splits as a shell does that knows single quotes only.
func splitWords(line string) []string {
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

// unstable are the parts of an output that no two runs share, and what stands for them.
var unstable = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [-+]\d{4}`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [-+]\d{4}`), "TIME"},
	{regexp.MustCompile(`/tmp/(LIVE|MERGED)-\d+`), "/tmp/$1"},
	{regexp.MustCompile(`"?resourceVersion"?: "\d+"`), "REVISION"},
	{regexp.MustCompile(`\b\d+(\.\d+)?m?s\b`), "AGE"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "SERVER"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`kubectl-lite`), "kubectl"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` from \w+ namespace`), ""}, // "deleted from default namespace": kubectl says so since 1.34
	{regexp.MustCompile(`\n\s*"?creationTimestamp"?: null,?`), ""},
}

// normalize makes outputs comparable: what no two runs share is replaced, and column widths are evened out.
func normalize(text, dir, host string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, dir, "DIR"), host, "https://SERVER")
	if _, port, err := net.SplitHostPort(strings.TrimPrefix(host, "https://")); err == nil { // the Service kubernetes has it
		text = regexp.MustCompile(`\b`+port+`\b`).ReplaceAllString(text, "PORT")
	}
	for _, u := range unstable {
		text = u.pattern.ReplaceAllString(text, u.with)
	}
	return text
}

// TestParity_KnownDifferencesAreDocumented: whoever uses kubectl-lite can read what differs and why.
func TestParity_KnownDifferencesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/kubectl-lite.md")
	require.NoError(t, err)
	for _, reason := range knownDifferences {
		assert.Contains(t, string(text), reason)
	}
}
