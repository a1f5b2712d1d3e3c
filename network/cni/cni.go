// Package cni gives the pods' network to containers of other runtimes, such as containerd's and CRI-O's, by the
// Container Network Interface (https://www.cni.dev/docs/spec, version 1.1 and before). It has two halves, which meet in
// a folder of the machine:
//
//   - the daemon (Host, Follow) is there for a Node whose kubelet is not ours. It keeps the router's namespace, so that
//     it outlives the daemon, and writes down what the plugin needs to know;
//   - the plugin (Main) is started by a runtime for each container. It gives the container an address and connects it
//     with the router. It is no client of the API, and starts nothing.
//
// The folder, which is the superuser's alone and whose place is on a file system that a restart of the machine empties,
// as containers end then too:
//
//	daemon.lock      is locked by the daemon: that it runs, and that containers can be connected
//	netns            the router's namespace, mounted
//	network.json     Network
//	daemon.sock      where the daemon answers the plugin
//	addresses/       one link for each address that is taken: 10.244.0.5 -> NETWORK/CONTAINER/DEVICE
//	addresses.lock   is locked while an address is taken
//	last4, last6     the addresses that were taken last
//
//	host_linux.go       the daemon's side of the folder
//	install_linux.go    the plugin and its configuration, at the places where runtimes look for them
//	follow_linux.go     the daemon's Node
//	addresses_linux.go  who has which address
//	protect_linux.go    a container is connected when its pod's policies are in force
//	plugin_linux.go     the commands of the specification; check_linux.go is CHECK
//	loopback_linux.go   the plugin "loopback", for runtimes that come without
//	folder_linux.go     files and locks
package cni

import "net/netip"

// The names of the plugin and of its network, where nobody gives others.
const (
	// Plugin is the name under which the program is the plugin, and the type in configurations.
	Plugin = "coxswain-cni"
	// Loopback is the name under which the program is the plugin that brings up a container's loopback device.
	Loopback = "loopback"
	// NetworkName is the network's.
	NetworkName = "coxswain"
	// StateDir is the folder.
	StateDir = "/run/coxswain-cni"
)

// Network is what the plugin needs to know of the machine's part of the network.
type Network struct {
	// Subnets are the Node's, of each of which a container gets an address. The first address of a subnet is the
	// router's, the second the machine's.
	Subnets []netip.Prefix `json:"subnets"`
	// MTU is that of containers' devices, in bytes; the router's own where zero.
	MTU int `json:"mtu,omitempty"`
	// Policies has the plugin ask the daemon, by Host.Answer, before it connects a container of a pod.
	Policies bool `json:"policies,omitempty"`
}
