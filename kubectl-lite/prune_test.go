package kubectllite

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// shop starts a server with objects of one label: kept and old have been applied, made has been created by another
// command. other has been applied too and has another label. It returns the name of a file that contains only kept.
func shop(t *testing.T) (*fakeServer, string) {
	t.Helper()
	f := newFakeServer(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name+".yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	kind := func(kind, name, label string) string {
		return "apiVersion: v1\nkind: " + kind + "\nmetadata: {name: " + name + ", labels: {app: " + label + "}}\n---\n"
	}
	file := write("kept", kind("ConfigMap", "kept", "shop"))
	all := write("all", kind("ConfigMap", "kept", "shop")+kind("ConfigMap", "old", "shop")+kind("Secret", "old", "shop")+
		kind("ServiceAccount", "old", "shop")+kind("ConfigMap", "other", "market"))
	made := write("made", kind("ConfigMap", "made", "shop"))
	require.Zero(t, f.run(t, "", "apply", "--validate=false", "-f", all).Code)
	require.Zero(t, f.run(t, "", "create", "--validate=false", "-f", made).Code)
	require.Zero(t, f.run(t, "", "create", "ns", "away").Code)
	require.Zero(t, f.run(t, "", "apply", "-n", "away", "--validate=false", "-f", file).Code)
	return f, file
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

var shopNames = []string{"away/configmaps/kept", "default/configmaps/kept", "default/configmaps/made",
	"default/configmaps/old", "default/configmaps/other", "default/secrets/old", "default/serviceaccounts/old"}

// Prune deletes an object only if it was applied before, has the labels, and has a kind to prune.
func TestPrune_DeletesAppliedObjectsWithoutADocument(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags string
		out   string
		gone  []string
	}{
		"by label": {"-l app=shop", "configmap/old pruned\nsecret/old pruned\n",
			[]string{"default/configmaps/old", "default/secrets/old"}},
		"all": {"--all", "configmap/old pruned\nconfigmap/other pruned\nsecret/old pruned\n",
			[]string{"default/configmaps/old", "default/configmaps/other", "default/secrets/old"}},
		"kinds of a list": {"-l app=shop --prune-allowlist=core/v1/Secret --prune-allowlist=core/v1/ServiceAccount",
			"secret/old pruned\nserviceaccount/old pruned\n",
			[]string{"default/secrets/old", "default/serviceaccounts/old"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, kept := shop(t)
			require.Equal(t, shopNames, f.names())
			got := f.run(t, "", append(strings.Fields("apply --validate=false --prune "+tt.flags), "-f", kept)...)
			require.Equal(t, clitest.Outcome{Out: "configmap/kept unchanged\n" + tt.out}, got)
			require.Equal(t, tt.gone, slices.DeleteFunc(slices.Clone(shopNames), func(name string) bool {
				return slices.Contains(f.names(), name)
			}))
		})
	}
}

func TestPrune_DryRunDeletesNoObject(t *testing.T) {
	t.Parallel()
	for flag, tt := range map[string]struct {
		words string
		sent  int // requests to delete
	}{"client": {"(dry run)", 0}, "server": {"(server dry run)", 2}} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			f, kept := shop(t)
			got := f.run(t, "", "apply", "--validate=false", "--prune", "-l", "app=shop", "--dry-run="+flag, "-f", kept)
			require.Equal(t, clitest.Outcome{Out: strings.ReplaceAll("configmap/kept unchanged WORDS\n"+
				"configmap/old pruned WORDS\nsecret/old pruned WORDS\n", "WORDS", tt.words)}, got)
			require.Equal(t, shopNames, f.names())
			require.Equal(t, tt.sent, f.asked("DELETE "))
		})
	}
}
