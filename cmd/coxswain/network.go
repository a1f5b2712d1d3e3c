package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// networkFlags configure the network of pods on this machine, which network_linux.go runs.
type networkFlags struct {
	mode       string
	masquerade bool
	proxy      bool
	nodePorts  utilnet.PortRange
	kubeconfig string
	dns        bool
	balancers  []netip.Prefix // networks of load balancers that the machine reaches by the router, like cluster IPs
}

// noPeers is the --network-mode without connections to the pods of other machines.
const noPeers = "none"

var networkModes = []string{noPeers, "vxlan", "routes"}

// add adds the flags of all networks of pods. pods describes the pods that have the network, for the help.
func (f *networkFlags) add(fs *pflag.FlagSet, pods string) {
	fs.StringVar(&f.mode, "network-mode", noPeers, "how "+pods+" reach pods of other machines: "+
		"vxlan; routes, if the machines share a network segment; or none")
	fs.BoolVar(&f.masquerade, "masquerade", false, "let "+pods+" reach the machine's network and the "+
		"internet from its address, by forwarding and one table of the machine's packet filter")
	fs.BoolVar(&f.proxy, "proxy", true, "serve Services' addresses and enforce NetworkPolicies for "+pods+
		"; false if coxswain proxy does")
	fs.Var(&f.nodePorts, "node-ports", "range of ports, such as 30000-32767, on which this machine's own addresses "+
		"serve Services of "+pods+", by forwarding and one table of the machine's packet filter; if empty, only "+
		"pods and this machine can use node ports")
}

// addDNS adds the flag of an agent, which runs a DNS server of its own.
func (f *networkFlags) addDNS(fs *pflag.FlagSet) {
	fs.BoolVar(&f.dns, "dns", true, "run a DNS server for pods of --runtime process that have --cluster-dns, as an "+
		"endpoint of the Service kube-dns; false if the cluster has other servers, such as CoreDNS")
}

// addKubeconfig adds the flag of an agent that is a process of its own.
func (f *networkFlags) addKubeconfig(fs *pflag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "network-kubeconfig", "", "kubeconfig with which the pods' network reads "+
		"Services, EndpointSlices, Nodes, pods, namespaces and NetworkPolicies; --kubeconfig if empty")
}

func (f *networkFlags) check() error {
	if f.mode != "" && !slices.Contains(networkModes, f.mode) {
		return fmt.Errorf("--network-mode: %q is not one of: %s", f.mode, strings.Join(networkModes, ", "))
	}
	return nil
}

// identity returns the client configuration of the network's parts.
func (f *networkFlags) identity(as identities) (*rest.Config, error) {
	switch {
	case f.kubeconfig != "":
		own, err := loadIdentities(f.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--network-kubeconfig: %w", err)
		}
		return own.main, nil
	case as.network != nil:
		return as.network()
	}
	return as.main, nil
}
