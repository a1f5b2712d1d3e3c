package kubectllite

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

const plainMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\ndata: {a: VALUE}\n"

func mapOf(name, value string) string {
	return strings.NewReplacer("NAME", name, "VALUE", value).Replace(plainMap)
}

// expandingYAML becomes a gigabyte when its aliases are expanded.
var expandingYAML = "a: &a " + strings.Repeat("x", 50_000) + "\nb: [" + strings.Repeat("*a,", 20_000) + "]\n"

// The document with the server's schema is large, and the patch is the same without it.
func TestApply_ReadsNoSchemaForAPatch(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	for _, value := range []string{"one", "two"} {
		require.Zero(t, f.run(t, mapOf("plain", value), "apply", "--validate=false", "-f", "-").Code)
	}
	require.Equal(t, 1, f.asked("PATCH "))
	require.Zero(t, f.asked("/openapi"))
	require.Zero(t, f.run(t, mapOf("plain", "three"), "apply", "--validate=false", "--openapi-patch", "-f", "-").Code)
	require.Equal(t, 2, f.asked("PATCH "))
	require.NotZero(t, f.asked("/openapi"))
}

// kubectl's commands read standard input themselves. A document that is too large must not make the documents before it
// look like all of them: prune would delete the objects of the others.
func TestApply_LimitsDocuments(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	for _, name := range []string{"first", "second"} {
		require.Zero(t, f.run(t, mapOf(name, "one"), "apply", "--validate=false", "-f", "-").Code)
	}
	before := f.names()
	documents := mapOf("first", "two") + "---\n" + expandingYAML + "---\n" + mapOf("second", "two")
	for _, line := range []string{"apply --prune --all --prune-allowlist=core/v1/ConfigMap", "create", "replace",
		"delete --wait=false --ignore-not-found"} {
		got := f.run(t, documents, append(strings.Fields(line), "-f", "-")...)
		require.Equal(t, 1, got.Code, line)
		require.Contains(t, got.ErrOut, "error parsing STDIN: the document exceeds the limit", line)
		require.Contains(t, f.names(), "default/configmaps/second", line)
		if line != "delete --wait=false --ignore-not-found" {
			require.Equal(t, before, f.names(), line)
		}
	}
	manifests := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, documents)
	}))
	t.Cleanup(manifests.Close)
	got := f.run(t, "", "apply", "--validate=false", "-f", manifests.URL)
	require.Equal(t, 1, got.Code, "%+v", got)
	require.Contains(t, got.ErrOut, "the document exceeds the limit")
	got = f.run(t, "a: &a [x]\n"+mapOf("aliased", "*a")+"---\n"+mapOf("third", "{x: &v why}"), "create",
		"--validate=false", "-f", "-", "-o", "jsonpath={.data.a}")
	require.Equal(t, "[\"x\"]{\"x\":\"why\"}", got.Out, got.ErrOut)
}

// kubectl does not wait at all, because the default of its flag --timeout is 0.
func TestApply_ForceWaitsUntilTheObjectIsGone(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	manifest := func(value string) string {
		path := filepath.Join(t.TempDir(), "map.yaml")
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(mapOf("fixed", value), "{name",
			"{finalizers: [example.com/wait], name", 1)+"immutable: true\n"), 0o600))
		return path
	}
	l.Succeed(t, "", "apply -f "+manifest("one"))
	uid := l.Succeed(t, "", "get cm fixed -o jsonpath={.metadata.uid}")
	require.Equal(t, 1, l.Run(t, "", "apply -f "+manifest("two")).Code)
	out := clitest.StartChild(t, "--kubeconfig="+l.Kubeconfig, "--cache-dir="+l.Cache, "apply", "--force", "-f",
		manifest("two"))
	require.Eventually(t, func() bool {
		return l.Succeed(t, "", "get cm fixed -o jsonpath={.metadata.deletionTimestamp}") != ""
	}, time.Minute, 10*time.Millisecond)
	l.Succeed(t, "", `patch cm fixed --type=merge -p {"metadata":{"finalizers":null}}`)
	require.Eventually(t, func() bool { return out.String() == "configmap/fixed configured\n" }, time.Minute,
		10*time.Millisecond)
	require.NotEqual(t, uid, l.Succeed(t, "", "get cm fixed -o jsonpath={.metadata.uid}"))
	require.Equal(t, "two", l.Succeed(t, "", "get cm fixed -o jsonpath={.data.a}"))
}

// names returns the objects in all namespaces.
func (f *fakeServer) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, path := range sortedKeys(f.objects) {
		if _, rest, ok := strings.Cut(path, "/namespaces/"); ok && strings.Contains(rest, "/") {
			all = append(all, rest)
		}
	}
	return all
}
