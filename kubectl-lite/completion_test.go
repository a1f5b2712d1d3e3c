package kubectllite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// hostileNames would run commands, be expanded, or have another meaning on the command line.
var hostileNames = []string{
	"$(touch owned)a", "$(touch owned)b", "`touch owned`a", "`touch owned`b", ";touch owned", "a;touch owned",
	"a|touch owned", "a&touch owned", "a>owned", "<(touch owned)",
	"'", "\"", "a'b", "\\", "~root", "~", "*", "a?", "{a,b}", "!!", "#a", "--all", "-A", "=ls",
	"_activeHelp_ call this number", "a\nb", "a\tdescription", clitest.HostileText, "a\u009b31m", "",
}

func TestCompletion_ProposalsNeedNoQuoting(t *testing.T) {
	t.Parallel()
	for _, name := range hostileNames {
		require.False(t, canBeTyped(name), name)
	}
	for _, name := range []string{"web-0", "web-0:", "deployments/", "cm/settings", "system:node",
		"arn:aws:eks:eu-west-1:1:cluster/x", "admin@shop", "gke_a_b_c", "my context", "Größe"} {
		require.True(t, canBeTyped(name), name)
	}
	f := newFakeServer(t)
	for i, name := range append(hostileNames, "harmless") {
		f.objects[fmt.Sprintf("/api/v1/namespaces/default/configmaps/%d", i)] = map[string]any{"kind": "ConfigMap",
			"apiVersion": "v1", "metadata": map[string]any{"name": name, "namespace": "default"}}
	}
	offered := strings.Split(runAsShell(t, f.kubeconfig(t), "__completeNoDesc", "get", "cm", ""), "\n")
	require.Equal(t, []string{"harmless", ":4", ""}, offered)
}

// TestCompletion_RunsNoCommandInBash completes twice with bash-completion, like a user who presses the key again.
func TestCompletion_RunsNoCommandInBash(t *testing.T) {
	t.Parallel()
	const library = "/usr/share/bash-completion/bash_completion"
	bash, err := exec.LookPath("bash")
	if _, missing := os.Stat(library); err != nil || missing != nil {
		t.Skip("SKIPPED: completion in bash is not tested, for this machine has no bash-completion")
	}
	f := newFakeServer(t)
	folder := t.TempDir()
	config := map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "fake",
		"clusters": []any{map[string]any{"name": "fake", "cluster": map[string]any{"server": f.URL}}}}
	contexts := []any{map[string]any{"name": "fake", "context": map[string]any{"cluster": "fake"}}}
	for i, name := range append(hostileNames, "harmless") {
		f.objects[fmt.Sprintf("/api/v1/namespaces/default/configmaps/%d", i)] = map[string]any{"kind": "ConfigMap",
			"apiVersion": "v1", "metadata": map[string]any{"name": name, "namespace": "default"}}
		contexts = append(contexts, map[string]any{"name": name, "context": map[string]any{"cluster": "fake"}})
	}
	config["contexts"] = contexts
	require.NoError(t, os.WriteFile(filepath.Join(folder, "config"), escapedJSON(t, config), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "script"), []byte(f.run(t, "", "completion", "bash").Out),
		0o600))
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", clitest.ChildVariable, os.Args[0])
	require.NoError(t, os.WriteFile(filepath.Join(folder, "kubectl-lite"), []byte(program), 0o700))
	session := `source ` + library + `; source ./script
press() {
	COMP_WORDS=(kubectl-lite "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
	__start_kubectl-lite kubectl-lite "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$COMP_CWORD-1]}" 2>/dev/null
}
for COMP_TYPE in 9 63 37; do
	for line in "get cm" "config use-context" "get pods --context"; do
		press $line ""
		replies=("${COMPREPLY[@]}")
		for reply in "${replies[@]}"; do echo "$line: $reply"; press $line "$reply"; done
	done
done`
	shell := exec.CommandContext(t.Context(), bash, "--norc", "-c", session)
	shell.Dir = folder
	shell.Env = []string{"PATH=" + folder + ":/usr/bin:/bin", "HOME=" + folder, "KUBECONFIG=" +
		filepath.Join(folder, "config"), "TERM=dumb"}
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	clitest.RequireVisible(t, string(out))
	require.NoFileExists(t, filepath.Join(folder, "owned"))
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		require.Contains(t, []string{"get cm: harmless", "config use-context: harmless", "config use-context: fake",
			"get pods --context: harmless", "get pods --context: fake"}, strings.TrimSpace(line))
	}
	require.Equal(t, 3, strings.Count(string(out), "get cm: harmless"), string(out))
}
