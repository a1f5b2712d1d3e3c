package main

import (
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/network/cni"
)

// cniFlags configure the daemon that provides the pods' network on a machine with another container runtime.
type cniFlags struct {
	network networkFlags
	node    string
	address string // the machine's
	state   string
	install installFlags
	cleanup bool
	ready   atomic.Bool
}

// installFlags configure the plugin and the network configuration that runtimes read.
type installFlags struct {
	confDir, binDir string
	copy            bool
	chain           []string
}

func newCNI() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cni",
		Short: "Provide the pods' network to other runtimes, by the Container Network Interface",
		Long: "With CNI_COMMAND in the environment, or under the name " + cni.Plugin + ", this program is the " +
			"plugin.\nThe plugin needs the daemon coxswain cni serve.",
		Args: cobra.NoArgs,
	}
	if _, isPlugin := os.LookupEnv("CNI_COMMAND"); isPlugin {
		cmd.Run = func(*cobra.Command, []string) { cni.Main() }
	}
	cmd.AddCommand(newCNIServe())
	return cmd
}

func newCNIServe() *cobra.Command {
	f, p := &cniFlags{}, &processFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the network of a Node with another kubelet",
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
	p.add(cmd.Flags(), "coxswain-cni", "127.0.0.1:10247")
	f.add(cmd.Flags())
	return cmd
}

func (f *cniFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.node, "node-name", "", "name of this machine's Node; the host name if empty")
	fs.StringVar(&f.address, "node-ip", "", "address of this machine for other machines; the Node's InternalIP if "+
		"empty")
	f.network.add(fs, "containers")
	fs.StringVar(&f.state, "state-dir", cni.StateDir, "folder for the state of daemon and plugin, on a file system "+
		"that a restart of the machine clears")
	i := &f.install
	fs.StringVar(&i.confDir, "cni-conf-dir", "/etc/cni/net.d", "folder for the runtimes' network configuration")
	fs.StringVar(&i.binDir, "cni-bin-dir", "/opt/cni/bin", "folder for the runtimes' plugins")
	fs.BoolVar(&i.copy, "copy-plugin", false, "install a copy of this program in --cni-bin-dir instead of a link to "+
		"it; necessary if the daemon runs in a container")
	fs.StringSliceVar(&i.chain, "cni-chain", nil, "types of plugins that run after this one, such as portmap for host "+
		"ports")
	fs.BoolVar(&f.cleanup, "cleanup", false, "remove the network, with all connections of containers, and exit")
}
