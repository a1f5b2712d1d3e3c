package main

import (
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
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
			etcdmain.Main(append([]string{"etcd"}, args...)) // exits the process itself
			return nil
		},
	}
	cmd.AddCommand(newSnapshot())
	return cmd
}
