package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// commandsBelow returns a command and all its subcommands, recursively.
func commandsBelow(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, commandsBelow(sub)...)
	}
	return all
}

// TestFlags_RejectInvalidNumbers sets every number of every subcommand to an invalid value.
func TestFlags_RejectInvalidNumbers(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, cmd := range commandsBelow(newCommand()) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			invalid := map[string]string{"duration": "-1s", "int": "-5", "int32": "-5", "int64": "-5",
				"float32": "-0.5", "float64": "NaN"}[f.Value.Type()]
			if invalid == "" || negatives[f.Name] {
				return
			}
			seen++
			value := f.Value.String()
			require.NoError(t, cmd.Flags().Set(f.Name, invalid))
			require.ErrorContains(t, checkFlags(cmd.Flags()), "--"+f.Name+": ", cmd.CommandPath())
			require.NoError(t, cmd.Flags().Set(f.Name, value))
			require.NoError(t, checkFlags(cmd.Flags()), "the default of --%s of %s", f.Name, cmd.CommandPath())
		})
	}
	require.Greater(t, seen, 80)
}

// This test is not parallel, since a command sets the process's logger.
func TestFlags_ErrorsNameTheFlag(t *testing.T) {
	run := func(args ...string) error {
		cmd := newCommand()
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(args)
		return cmd.Execute()
	}
	dir := t.TempDir()
	for _, args := range [][]string{
		{"up", "--event-ttl", "-1h"}, {"apiserver", "--quota-backend-bytes", "-1"},
		{"up", "--tls-san", "ok.example.com,not a name"},
		{"up", "--tls-san", "https://a"}, {"certs", "--etcd-san", "a_b"}, {"up", "--bind-address", "everywhere"},
		{"apiserver", "--secure-port", "65536"}, {"apiserver", "--goaway-chance", "0.5"},
		{"up", "--secure-port", "-1"}, {"up", "--node-prefix", "Node_"}, {"node", "--port", "70000"},
		{"scheduler", "--metrics-bind-address", "8080"},
		{"scheduler", "--leader-elect-lease-duration", "-1s"}, {"controllers", "--node-eviction-rate", "-1"},
		{"controllers", "--concurrent-job-syncs", "-1"},
		{"apiserver", "--etcd-servers", "https://"}, {"certs", "check-expiration", "--fail-within", "-1h"},
		{"health", "--timeout", "-1s", "http://127.0.0.1:1"},
		{"up", "--simulated-run-for", "-1s"}, {"node", "--simulated-run-for", "long"},
		{"up", "--max-request-memory", "1Mi"}, {"apiserver", "--max-request-memory", "-64Mi"},
	} {
		i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--") })
		flag, _, _ := strings.Cut(args[i], "=")
		if slices.Contains([]string{"up", "apiserver", "certs"}, args[0]) {
			args = append(args, "--data-dir", dir)
		}
		require.ErrorContains(t, run(args...), flag+": ", args)
	}
	for _, args := range [][]string{{"nosuch"}, {"etcd", "snapshot", "nosuch"}, {"certs", "nosuch"}, {"up", "nosuch"},
		{"completion", "nosuch"}, {"help", "nosuch"}, {"help", "certs", "nosuch"}} {
		require.ErrorContains(t, run(args...), "unknown command", args)
	}
	for _, args := range [][]string{{}, {"etcd", "snapshot"}, {"--help"}, {"help"}, {"help", "etcd", "snapshot"},
		{"help", "up"}, {"version"}} {
		require.NoError(t, run(args...), args)
	}
	require.NoError(t, isHost("*.example.com"))
}

func TestFlags_RejectTooLittleRequestMemory(t *testing.T) {
	t.Parallel()
	for text, rejected := range map[string]bool{"1Mi": true, "27Mi": true, "-64Mi": true, "1": true, "28Mi": false,
		"64Mi": false, "0": false} {
		err := isRequestMemory(text)
		if rejected {
			require.ErrorContains(t, err, text+" is less than 28Mi")
		} else {
			require.NoError(t, err, text)
		}
	}
}
