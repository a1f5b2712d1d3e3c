package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/usage"
)

// mistakes are command lines and the answers to them. DIR is a folder with the file "empty".
var mistakes = []struct{ line, answer string }{
	// commands and arguments
	{"uo", `unknown command "uo" for "coxswain"; did you mean up?`},
	{"controler", `unknown command "controler" for "coxswain"; did you mean controllers?`},
	{"start", `unknown command "start" for "coxswain"; did you mean up?`},
	{"kubelet --kubeconfig a", `unknown command "kubelet" for "coxswain"; did you mean node?`},
	{"kubectl get pods", `unknown command "kubectl" for "coxswain"; did you mean the program kubectl-lite?`},
	{"quetzal", `unknown command "quetzal" for "coxswain"; --help lists them`},
	{"etcd snapshot svae x", `unknown command "svae" for "coxswain etcd snapshot"; did you mean save?`},
	{"help snapshto", `unknown command "snapshto" for "coxswain"; --help lists them`},
	{"certs check-expiry", `unknown command "check-expiry" for "coxswain certs"; did you mean check-expiration?`},
	{"etcd snapshot save", "coxswain etcd snapshot save needs FILE"},
	{"assets", "coxswain assets needs DIR"},
	{"assets a b", `coxswain assets takes only DIR, but also got "b"`},
	{"health", "coxswain health needs URL"},
	{"up now", `coxswain up takes no arguments, but got "now"`},
	{"up --profiling false", `coxswain up does not take "false" as an argument: a flag takes it after =, as in --profiling=false`},
	{"up nodes=5", `coxswain up does not take "nodes=5" as an argument; did you mean --nodes=5?`},
	{"up nodes 5", `coxswain up does not take "nodes" as an argument; did you mean --nodes=5?`},
	// flags
	{"up --node 3", "coxswain up has no flag --node; did you mean --nodes?"},
	{"up --nodse=3", "coxswain up has no flag --nodse; did you mean --nodes?"},
	{"up -nodes 3", "coxswain up has no flag -nodes; did you mean --nodes?"},
	{"up -n 3", "coxswain up has no flag -n; --help lists its flags"},
	{"up --datadir /x", "coxswain up has no flag --datadir; did you mean --data-dir?"},
	{"up --loglevel debug", "coxswain up has no flag --loglevel; did you mean --log-level?"},
	{"up --kubeconfig a", "coxswain up has no flag --kubeconfig; coxswain cni serve, coxswain controllers and coxswain dns have it"},
	{"up --feature-gates A=true", "coxswain up has no flag --feature-gates; coxswain apiserver has it"},
	{"scheduler --quetzal", "coxswain scheduler has no flag --quetzal; --help lists its flags"},
	{"up --nodes", "--nodes needs a value: a whole number"},
	{"up --event-ttl", "--event-ttl needs a value: a duration, such as 90s, 30m or 24h"},
	{"scheduler --kubeconfig", "--kubeconfig needs a value: kubeconfig of the API server; empty uses KUBECONFIG and kubectl's other places"},
	{"up --=3", "--=3 is no flag: a name must follow the dashes"},
	// numbers, durations and other values
	{"up --nodes three", `--nodes: "three" is not a whole number`},
	{"up --nodes 3.5", `--nodes: "3.5" is not a whole number`},
	{"up --nodes 99999999999999999999", `--nodes: "99999999999999999999" is too large a number`},
	{"up --nodes -1", "--nodes: -1 must not be negative"},
	{"up --nodes 20000", "--nodes: must be between 0 and 10000"},
	{"up --secure-port https", `--secure-port: "https" is not a whole number`},
	{"up --secure-port 99999", "--secure-port: 99999 is not a port, 0 to 65535"},
	{"apiserver --goaway-chance often", `--goaway-chance: "often" is not a number`},
	{"up --event-ttl 5", `--event-ttl: "5" lacks a unit: give 5s, 5m or 5h`},
	{"up --event-ttl 2d", `--event-ttl: "2d" is not a duration: the longest unit is h, as in 48h`},
	{"up --event-ttl soon", `--event-ttl: "soon" is not a duration, such as 90s, 30m or 24h`},
	{"up --event-ttl -1h", "--event-ttl: -1h0m0s must not be negative"},
	{"up --profiling=maybe", `--profiling: "maybe" is neither true nor false`},
	{"up --advertise-address here", `--advertise-address: "here" is not an IP address`},
	{"up --bind-address everywhere", `--bind-address: "everywhere" is not an IP address`},
	{"scheduler --metrics-bind-address 8080", `--metrics-bind-address: "8080" is not an address with a port, such as 127.0.0.1:8080`},
	{"up --service-cluster-ip-range 10.96.0.0", `--service-cluster-ip-range: "10.96.0.0" is not a CIDR, such as 10.96.0.0/16`},
	{"node --kube-reserved cpu", `--kube-reserved: "cpu" is not a list of pairs NAME=VALUE with commas`},
	{"up --log-level verbose", `--log-level: "verbose" is not one of: debug, info, warn, error`},
	{"up --log-level infos", `--log-level: "infos" is not one of: debug, info, warn, error; did you mean info?`},
	{"up --logging-format xml", `--logging-format: "xml" is not one of: text, json`},
	{"up --runtime docker", `--runtime: "docker" is not one of: simulated, process`},
	{"apiserver --authorization-mode RABC", `--authorization-mode: "RABC" is not one of: AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook; did you mean RBAC?`},
	{"apiserver --authorization-mode Node,ABAC", "--authorization-mode: ABAC is refused: this server has no authorization by policy files, which only a restart could change; RBAC has Roles, and Webhook asks a program of yours"},
	{"up --enable-admission-plugins PodNodeSelectr", `--enable-admission-plugins: there is no admission plugin "PodNodeSelectr"; did you mean PodNodeSelector?`},
	{"controllers --controllers *,-deploymnt-controller", `--controllers: there is no controller "deploymnt-controller"; did you mean deployment-controller?`},
	{"apiserver --runtime-config apps/v1=false", "--runtime-config: apps/v1=false is refused: this server serves all its APIs"},
	{"apiserver --etcd-servers-overrides /pods#http://a", "--etcd-servers-overrides: this server stores everything in --etcd-servers"},
	// files
	{"up --audit-policy-file DIR/none.yaml", "--audit-policy-file: the file DIR/none.yaml does not exist"},
	{"up --audit-policy-file DIR", "--audit-policy-file: DIR is a folder, not a file"},
	{"up --audit-policy-file DIR/empty", `--audit-policy-file: DIR/empty: an audit policy has apiVersion audit.k8s.io/v1 and kind Policy, not "" and ""`},
	{"apiserver --tls-cert-file DIR/empty", "--tls-cert-file needs --tls-private-key-file"},
	{"apiserver --tls-cert-file DIR/a --tls-private-key-file DIR/b", "--tls-cert-file: the file DIR/a does not exist\n--tls-private-key-file: the file DIR/b does not exist"},
	{"apiserver --client-ca-file DIR/ca.crt", "--client-ca-file: the file DIR/ca.crt does not exist"},
	{"controllers --kubeconfig DIR/none", "--kubeconfig: the file DIR/none does not exist"},
	{"scheduler --config DIR/none", "--config: the file DIR/none does not exist"},
	{"node --kubeconfig DIR/empty", "--kubeconfig: DIR/empty names no API server"},
}

// This test is not parallel, since a command sets the process's logger.
func TestMistakes_AreAnsweredInWords(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600))
	for _, c := range mistakes {
		cmd := newCommand()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		args := strings.Fields(strings.ReplaceAll(c.line, "DIR", dir))
		if slices.Contains([]string{"up", "apiserver"}, args[0]) && !strings.Contains(c.line, "data-dir") {
			args = slices.Insert(args, 1, "--data-dir="+filepath.Join(dir, "data"))
		}
		cmd.SetArgs(args)
		err := cmd.Execute()
		require.EqualError(t, err, strings.ReplaceAll(c.answer, "DIR", dir), c.line)
		require.Equal(t, 2, usage.ExitCode(err), c.line)
		require.Empty(t, out.String(), "%s: no usage", c.line)
		require.NoDirExists(t, filepath.Join(dir, "data"), "%s: nothing has started", c.line)
	}
	require.Greater(t, len(mistakes), 60)
}

// TestUsage_EachFlagHasASection checks the table of package usage with all flags of all commands.
func TestUsage_EachFlagHasASection(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, cmd := range slices.Concat(commandsBelow(newCommand()), []*cobra.Command{newKubeAPIServer()}) {
		var page bytes.Buffer
		cmd.InitDefaultHelpFlag()
		cmd.SetOut(&page)
		require.NoError(t, cmd.Usage())
		require.NotContains(t, page.String(), "\n"+usage.Unsorted+":", "%s: add its flags to usage/sections.go",
			cmd.CommandPath())
		common := usage.Common(cmd.CommandPath())
		require.LessOrEqual(t, len(common), 10, cmd.CommandPath())
		for _, name := range common {
			require.NotNil(t, cmd.Flag(name), "%s: the common flag %s", cmd.CommandPath(), name)
			require.Equal(t, 1, strings.Count(page.String(), " --"+name+" "), "%s: --%s is shown once", cmd.CommandPath(),
				name)
			checked++
		}
		if len(common) > 0 {
			first, _, _ := strings.Cut(page.String()[strings.Index(page.String(), "Common flags:"):], "\n\n")
			require.Equal(t, len(common), strings.Count(first, "\n  "), first)
		}
	}
	require.Greater(t, checked, 60)
}

// TestUsage_EachCommandIsInAGroup checks the program's own page.
func TestUsage_EachCommandIsInAGroup(t *testing.T) {
	t.Parallel()
	cmd := newCommand()
	var page bytes.Buffer
	cmd.SetOut(&page)
	require.NoError(t, cmd.Usage())
	require.NotContains(t, page.String(), "\nOthers:")
	for _, sub := range cmd.Commands() {
		require.Contains(t, page.String(), "\n  "+sub.Name()+" ")
	}
}
