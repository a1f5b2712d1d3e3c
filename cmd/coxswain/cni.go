package main

import (
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/network/cni"
)

// cniFlags are those of the daemon of a machine whose containers are another runtime's.
type cniFlags struct {
	network networkFlags
	node    string
	address string // of the machine
	state   string
	install installFlags
	cleanup bool
	ready   atomic.Bool
}

// installFlags say where runtimes look for plugins, and what they find there.
type installFlags struct {
	confDir, binDir string
	copy            bool
	chain           []string
}

func newCNI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Give the pods' network to other runtimes, by the Container Network Interface",
		Long: "With CNI_COMMAND in the environment, this is the plugin, and so is the program by the name " +
			cni.Plugin + ".\nThe daemon that the plugin needs is coxswain cni serve.",
		Args: cobra.NoArgs,
	}
	if _, asked := os.LookupEnv("CNI_COMMAND"); asked {
		cmd.Run = func(*cobra.Command, []string) { cni.Main() }
	}
	cmd.AddCommand(newCNIServe())
	return cmd
}

func newCNIServe() *cobra.Command {
	f, p := &cniFlags{}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Keep the network of a Node whose kubelet is another one",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.network.check(); err != nil {
				return err
			}
			if f.cleanup {
				return f.remove()
			}
			p.endpoint.ready = f.ready.Load
			return p.run(cmd.Context(), prometheus.NewRegistry(), f.run)
		},
	}
	p.add(cmd.Flags(), "127.0.0.1:10247")
	f.add(cmd.Flags())
	return cmd
}

func (f *cniFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.node, "node-name", "", "name of this machine's Node; the host name where empty")
	fs.StringVar(&f.address, "node-ip", "", "address of this machine, by which others reach it; the Node's "+
		"InternalIP where empty")
	f.network.add(fs, "containers")
	fs.StringVar(&f.state, "state-dir", cni.StateDir, "folder for what daemon and plugin know, on a file system "+
		"that a restart of the machine empties")
	i := &f.install
	fs.StringVar(&i.confDir, "cni-conf-dir", "/etc/cni/net.d", "folder where runtimes look for their network")
	fs.StringVar(&i.binDir, "cni-bin-dir", "/opt/cni/bin", "folder where runtimes look for plugins")
	fs.BoolVar(&i.copy, "copy-plugin", false, "have --cni-bin-dir get a copy of this program rather than a link to "+
		"it, as it must where the daemon is in a container")
	fs.StringSliceVar(&i.chain, "cni-chain", nil, "types of plugins that come after this one, such as portmap for "+
		"host ports")
	fs.BoolVar(&f.cleanup, "cleanup", false, "remove the network, with all connections of containers, and exit")
}
