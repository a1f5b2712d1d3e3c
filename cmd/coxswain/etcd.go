package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"

	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// newEtcd is the etcd server itself, from the same module as the embedded one, and the commands on its
// data.
func newEtcd() *cobra.Command {
	cmd := &cobra.Command{
		Use:                "etcd [etcd's own flags]",
		Short:              "Run an etcd server: a member of the cluster that --etcd-servers names",
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

// runEtcd is the program under the name etcd. It exits the process. A lone member elects itself in a few ticks of its
// clock: they are short unless the flags say how long, so that a new etcd serves at once.
func runEtcd(args []string) {
	if lone(args) {
		args = append([]string{"--heartbeat-interval=10", "--election-timeout=50"}, args...)
	}
	etcd.UseSmallSegments()
	etcdmain.Main(append([]string{"etcd"}, args...))
}

// lone reports whether the flags are those of a member without others, and leave the length of elections open.
func lone(args []string) bool {
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
