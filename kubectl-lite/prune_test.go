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

// shop makes a namespace with objects of one label: kept and old have been applied, made has been created by another
// command. other has been applied too and has another label. Another namespace has a kept of its own. It returns the
// name of a file that contains only kept.
func shop(t *testing.T, l clitest.Live, namespace string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name+".yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	kind := func(kind, name, label string) string {
		return "apiVersion: v1\nkind: " + kind + "\nmetadata: {name: " + name + ", labels: {app: " + label + "}}\n---\n"
	}
	kept := write("kept", kind("ConfigMap", "kept", "shop"))
	all := write("all", kind("ConfigMap", "kept", "shop")+kind("ConfigMap", "old", "shop")+kind("Secret", "old", "shop")+
		kind("ServiceAccount", "old", "shop")+kind("ConfigMap", "other", "market"))
	made := write("made", kind("ConfigMap", "made", "shop"))
	l.Succeed(t, "", "create ns "+namespace)
	l.Succeed(t, "", "create ns "+namespace+"-away")
	l.Succeed(t, "", "apply -n "+namespace+" -f "+all)
	l.Succeed(t, "", "create -n "+namespace+" -f "+made)
	l.Succeed(t, "", "apply -n "+namespace+"-away -f "+kept)
	require.Equal(t, shopNames, shopObjects(t, l, namespace))
	return kept
}

// shopObjects returns the objects of a shop in its namespace and the other one.
func shopObjects(t *testing.T, l clitest.Live, namespace string) []string {
	t.Helper()
	objects := strings.Fields(l.Succeed(t, "", "get cm,secret,sa -l app -o name -n "+namespace))
	for _, name := range strings.Fields(l.Succeed(t, "", "get cm,secret,sa -l app -o name -n "+namespace+"-away")) {
		objects = append(objects, "away/"+name)
	}
	return objects
}

var shopNames = []string{"configmap/kept", "configmap/made", "configmap/old", "configmap/other", "secret/old",
	"serviceaccount/old", "away/configmap/kept"}

// Prune deletes an object only if it was applied before, has the labels, and has a kind to prune.
func TestPrune_DeletesAppliedObjectsWithoutADocument(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	for name, tt := range map[string]struct {
		flags string
		out   string
		gone  []string
	}{
		"label": {"-l app=shop", "configmap/old pruned\nsecret/old pruned\n",
			[]string{"configmap/old", "secret/old"}},
		"all": {"--all", "configmap/old pruned\nconfigmap/other pruned\nsecret/old pruned\n",
			[]string{"configmap/old", "configmap/other", "secret/old"}},
		"list": {"-l app=shop --prune-allowlist=core/v1/Secret --prune-allowlist=core/v1/ServiceAccount",
			"secret/old pruned\nserviceaccount/old pruned\n", []string{"secret/old", "serviceaccount/old"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := shop(t, l, name)
			got := l.Run(t, "", "apply --prune "+tt.flags+" -n "+name+" -f "+kept)
			require.Equal(t, "configmap/kept unchanged\n"+tt.out, got.Out)
			require.Zero(t, got.Code, got.ErrOut)
			left := shopObjects(t, l, name)
			require.Equal(t, tt.gone, slices.DeleteFunc(slices.Clone(shopNames), func(name string) bool {
				return slices.Contains(left, name)
			}))
		})
	}
}

func TestPrune_DryRunDeletesNoObject(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t)
	for flag, words := range map[string]string{"client": "(dry run)", "server": "(server dry run)"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			kept := shop(t, l, flag)
			got := l.Run(t, "", "apply --prune -l app=shop --dry-run="+flag+" -n "+flag+" -f "+kept)
			require.Equal(t, strings.ReplaceAll("configmap/kept unchanged WORDS\nconfigmap/old pruned WORDS\n"+
				"secret/old pruned WORDS\n", "WORDS", words), got.Out)
			require.Zero(t, got.Code, got.ErrOut)
			require.Equal(t, shopNames, shopObjects(t, l, flag))
		})
	}
}
