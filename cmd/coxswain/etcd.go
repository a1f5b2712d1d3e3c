package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// newEtcd returns the command that runs etcd's own server, from the same module as the embedded one, with the
// subcommands on its data.
func newEtcd() *cobra.Command {
	cmd := &cobra.Command{
		Use:                "etcd [etcd's own flags]",
		Short:              "Run an etcd server, a member of a cluster for --etcd-servers",
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			runEtcd(args)
			return nil
		},
	}
	cmd.AddCommand(newSnapshot(), newEtcdGet(), newMakeRoom())
	return cmd
}

// runEtcd runs etcd's own main function, which exits the process. A single member elects itself after a few ticks of
// its clock. runEtcd makes them short unless a flag sets them, so that a new etcd serves at once.
func runEtcd(args []string) {
	if singleMember(args) {
		args = append([]string{"--heartbeat-interval=10", "--election-timeout=50"}, args...)
	}
	etcd.UseSmallSegments()
	etcdmain.Main(append([]string{"etcd"}, args...))
}

// singleMember reports whether the flags are those of a cluster with one member, and do not set the election timeout.
func singleMember(args []string) bool {
	if len(args) == 0 || !strings.HasPrefix(args[0], "-") { // a command such as grpc-proxy
		return false
	}
	return !slices.ContainsFunc(args, func(arg string) bool {
		flag, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch flag {
		case "heartbeat-interval", "election-timeout", "config-file", "discovery", "discovery-srv",
			"discovery-endpoints", "initial-cluster-state":
			return true
		}
		return strings.Count(arg, "=http") > 1 // --initial-cluster
	})
}
