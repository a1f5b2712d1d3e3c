package kubectllite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// kubercFile writes a kuberc and returns its path.
func kubercFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kuberc")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: kubectl.config.k8s.io/v1beta1\nkind: Preference\n"+text),
		0o600))
	return path
}

func TestKuberc_ChangesDefaultsAndAddsAliases(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	for _, name := range []string{"one", "two"} {
		require.Zero(t, f.run(t, mapOf(name, "x"), "apply", "--validate=false", "-f", "-").Code)
	}
	path := kubercFile(t, `
defaults:
- {command: get, options: [{name: output, default: name}]}
- {command: none, options: [{name: output, default: name}]}
aliases:
- {name: maps, command: get, prependArgs: [configmaps], options: [{name: show-labels, default: "false"}]}
- {name: made, command: create configmap, appendArgs: [three]}
- {name: apply, command: get}
`)
	unknown := "Warning: command \"none\" not found to set kuberc override\n"
	for line, want := range map[string]clitest.Outcome{
		"get cm":                {Out: "configmap/one\nconfigmap/two\n", ErrOut: unknown},
		"get cm one -o=json -o": {Code: 1},
		"maps -o name":          {Out: "configmap/one\nconfigmap/two\n", ErrOut: unknown},
		"maps one -n default -o name --kuberc=" + path: {Out: "configmap/one\n", ErrOut: unknown},
		"made --dry-run=client":                        {Out: "configmap/three created (dry run)\n", ErrOut: unknown},
		"nonesuch":                                     {Code: 1, ErrOut: "error: unknown command \"nonesuch\" for \"kubectl-lite\"\n"},
	} {
		got := f.run(t, "", append(strings.Fields(line), "--kuberc", path)...)
		if want.Code != 0 && want.ErrOut == "" {
			require.Equal(t, want.Code, got.Code, line)
			continue
		}
		require.Equal(t, want, got, line)
	}
	require.Equal(t, 1, f.run(t, "", "get", "cm", "--kuberc="+path+"-none").Code)
}

// A kuberc can keep kubeconfigs from running programs.
func TestKuberc_LimitsCredentialPlugins(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	config := f.kubeconfig(t)
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	exec := "user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: \"false\", interactiveMode: Never}}"
	// clients authenticate with TLS only
	text = []byte(strings.NewReplacer("user: {}", exec, "http://", "https://").Replace(string(text)))
	require.NoError(t, os.WriteFile(config, text, 0o600))
	got := clitest.Run(t, t.Context(), config, "", "get", "cm",
		"--kuberc="+kubercFile(t, "credentialPluginPolicy: DenyAll\n"))
	require.Equal(t, 1, got.Code)
	require.Contains(t, got.ErrOut, `plugin "false" not allowed: policy set to "DenyAll"`)
}

func TestKuberc_IsWrittenAndShown(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	path := kubercFile(t, "")
	got := f.run(t, "", "kuberc", "set", "--kuberc", path, "--section", "defaults", "--command", "get", "--option",
		"output=name")
	require.Zero(t, got.Code, got.ErrOut)
	got = f.run(t, "", "kuberc", "view", "--kuberc", path)
	require.Contains(t, got.Out, "default: name", got.ErrOut)
	require.Contains(t, got.Out, "kubectl.config.k8s.io/v1beta1")
}

// run with a terminal needs the unfiltered streams, and the command is made before its flags are parsed.
func TestKuberc_AddsFlagsOfASession(t *testing.T) {
	t.Parallel()
	path := kubercFile(t, `
aliases:
- {name: busy, command: run, appendArgs: ["--image=busybox"], options: [{name: stdin, default: "true"}]}
- {name: quiet, command: run, appendArgs: ["--image=busybox"]}
`)
	for line, want := range map[string]bool{"busy web": true, "quiet web": false, "run web": false,
		"run web -i": true} {
		_, s := newRoot(genericiooptions.NewTestIOStreamsDiscard(), append(strings.Fields(line), "--kuberc="+path), nil)
		require.Equal(t, want, asksForSession(s), line)
	}
}
