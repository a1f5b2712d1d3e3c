package kubectllite

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

// recordedPath is the recording of the real kubectl's results, by TestParity_RecordingIsTrueToKubectl.
const recordedPath = "testdata/parity.json"

// parityOutcome is the result of one invocation. Generated names, times and the like are replaced.
type parityOutcome struct {
	Args   string `json:"args"`
	Code   int    `json:"code"`
	Out    string `json:"out"`
	ErrOut string `json:"errOut,omitempty"`
}

// TestParity runs all steps by kubectl-lite, and compares their outputs, exit codes and
// objects with a recording of the real kubectl. To start kubectl more than 800 times would take longer than all other
// tests of this package. It cannot run in this process either, although its commands are a library, because the two
// would share the library's global variables. TestParity_RecordingIsTrueToKubectl, which make e2e runs, checks the
// recording.
func TestParity(t *testing.T) {
	t.Parallel()
	theirs := recorded(t)
	ours := runParity(t, aloneOn(t, testenv.Start(t, testenv.APIServerOnly())), liteRunner)
	require.Len(t, ours, len(theirs), renew)
	requireParity(t, theirs, ours)
	differs := map[string]bool{} // by arguments: a step may run twice, and be equal once
	for i := range ours {
		differs[ours[i].Args] = differs[ours[i].Args] || !assert.ObjectsAreEqual(theirs[i], ours[i])
		if _, ok := knownDifferences[ours[i].Args]; ok {
			assert.Equal(t, !knownCodes[ours[i].Args], theirs[i].Code == ours[i].Code, "exit codes of %s: %d, %d",
				ours[i].Args, theirs[i].Code, ours[i].Code)
		}
	}
	for args := range knownDifferences {
		assert.True(t, differs[args], "%s: the difference is gone; take it off the list", args)
	}
}

// renew is the message if the steps have changed and the recording has not.
const renew = "the recording is out of date: make parity ARGS=-record renews it"

func recorded(t *testing.T) []parityOutcome {
	t.Helper()
	text, err := os.ReadFile(recordedPath)
	require.NoError(t, err)
	var outcomes []parityOutcome
	require.NoError(t, json.Unmarshal(text, &outcomes))
	return outcomes
}

// requireParity compares all steps, except for known differences.
func requireParity(t *testing.T, theirs, ours []parityOutcome) {
	t.Helper()
	for i := range ours {
		if _, ok := knownDifferences[ours[i].Args]; !ok {
			assert.Equal(t, theirs[i], ours[i], ours[i].Args)
		}
	}
}

// stepTimeout is longer than any step. A step that hangs fails, and not the test as a whole.
const stepTimeout = 30 * time.Second

type parityRunner func(t *testing.T, kubeconfig, dir, stdin string, args []string) clitest.Outcome

func liteRunner(t *testing.T, kubeconfig, dir, stdin string, args []string) clitest.Outcome {
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	return clitest.Run(t, ctx, kubeconfig, stdin,
		append([]string{"--cache-dir=" + filepath.Join(dir, "cache")}, args...)...)
}

// parityPlace is the server on which the steps run: their own one, or a part of one with other users.
type parityPlace struct {
	kubeconfig *clientcmdapi.Config
	host       string
	// own puts the names of the place into a step, and plain takes them out of its output. Both are nil for the steps'
	// own server.
	own, plain func(string) string
	// unfit are steps that must not run on this server.
	unfit map[string]bool
}

// aloneOn returns the place for a server without other users.
func aloneOn(t *testing.T, config *rest.Config) parityPlace {
	t.Helper()
	maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("kube-system")
	for _, name := range []string{"kube-apiserver-legacy-service-account-token-tracking",
		"extension-apiserver-authentication"} {
		require.Eventually(t, func() bool { // the server writes it when it has begun to answer, and lists show it
			_, err := maps.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil
		}, time.Minute, 10*time.Millisecond)
	}
	return parityPlace{kubeconfig: clitest.KubeconfigFor(config), host: config.Host}
}

func runParity(t *testing.T, place parityPlace, run parityRunner) []parityOutcome {
	t.Helper()
	own, plain := place.own, place.plain
	if own == nil {
		own, plain = strings.Clone, strings.Clone
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "config")
	require.NoError(t, clientcmd.WriteToFile(*place.kubeconfig, kubeconfig))
	for name, text := range parityFiles {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var all []parityOutcome
	for _, step := range slices.Concat(paritySteps, generatorSteps, setSteps, appliedSteps, streamSteps,
		configSteps, readSteps, customSteps) {
		if place.unfit[step.args] {
			continue
		}
		args := clitest.SplitWords(strings.ReplaceAll(own(step.args), "DIR", dir))
		got := run(t, kubeconfig, dir, own(step.stdin), args)
		all = append(all, parityOutcome{
			Args: step.args, Code: got.Code,
			Out: normalize(plain(got.Out), dir, place.host), ErrOut: normalize(plain(got.ErrOut), dir, place.host),
		})
	}
	return all
}

// parityFiles are the files in the folder DIR of the steps.
var parityFiles = map[string]string{
	"app.conf":  "mode=fast\n",
	"columns":   "NAME REPLICAS\nmetadata.name spec.replicas\n",
	"kept.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: kept}, data: {a: c}}\n",
	"draft.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: draft}, data: {text: " +
		"before}}\n",
	"bare.yaml":                     "{apiVersion: v1, kind: ConfigMap, metadata: {name: bare}, data: {a: b}}\n",
	"kustomized/kustomization.yaml": "resources: [cm.yaml]\nnamePrefix: my-\n",
	"kustomized/cm.yaml":            "{apiVersion: v1, kind: ConfigMap, metadata: {name: built}, data: {a: b}}\n",
}

// unstable are the parts of an output that differ between runs, and their replacements.
var unstable = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [-+]\d{4}`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [-+]\d{4}`), "TIME"},
	{regexp.MustCompile(`since: "\d{4}-\d\d-\d\d"`), "since: DATE"}, // in a ConfigMap of the server's own
	{regexp.MustCompile(`Unable to read directory "[^"]*" from your PATH: .*\n`), ""},
	{regexp.MustCompile(regexp.QuoteMeta(filepath.Clean(os.TempDir())) + `/(LIVE|MERGED)-\d+`), "/tmp/$1"},
	{regexp.MustCompile(`(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----`), "CERTIFICATE"},
	{regexp.MustCompile(`"?resourceVersion"?: ?"\d+"`), "REVISION"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?m?s|[2-9]m(\d+s)?)\b`), "AGE"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "SERVER"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`kubectl-lite`), "kubectl"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`'\S+ get resource`), "'kubectl get resource"}, // it calls itself by its file's name
	{regexp.MustCompile(`was \d+`), "was REVISION"},
	{regexp.MustCompile(`\b[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ `), "LOGGED "},
	{regexp.MustCompile(`(?s)\n\[signal SIGSEGV.*`), "\n"}, // the stack below a panic
}

// normalize makes outputs comparable: it replaces the parts that differ between runs, and evens out column widths.
func normalize(text, dir, host string) string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, dir, "DIR"), host, "https://SERVER")
	// the Service kubernetes has the port
	if _, port, err := net.SplitHostPort(strings.TrimPrefix(host, "https://")); err == nil {
		text = regexp.MustCompile(`\b`+port+`\b`).ReplaceAllString(text, "PORT")
	}
	for _, u := range unstable {
		text = u.pattern.ReplaceAllString(text, u.with)
	}
	return text
}

// TestParity_KnownDifferencesAreDocumented checks that the documentation has the reason for every known difference.
func TestParity_KnownDifferencesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/kubectl-lite.md")
	require.NoError(t, err)
	for _, reason := range knownDifferences {
		assert.Contains(t, string(text), reason)
	}
}
