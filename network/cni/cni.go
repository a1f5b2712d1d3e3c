// Package cni connects containers of other runtimes, such as containerd and CRI-O, to the pod network, by the Container
// Network Interface (https://www.cni.dev/docs/spec, versions up to 1.1). It has two halves, which share a state folder
// on the machine:
//
//   - the daemon (Host, Follow) serves a Node with another kubelet than ours. It mounts the router's namespace, so that
//     the namespace outlives the daemon, and writes the data that the plugin needs;
//   - the plugin (Main) is started by a runtime for each container. It allocates an address for the container and
//     connects it to the router. It is not a client of the API and starts no process.
//
// Only the superuser has access to the folder. It is on a file system that a restart of the machine empties, because a
// restart ends the containers too:
//
//	daemon.lock      locked by the daemon: one byte while it runs, one while containers can be connected
//	netns            the router's namespace, mounted
//	network.json     Network
//	daemon.sock      the socket on which the daemon answers the plugin
//	addresses/       one symbolic link per allocated address: 10.244.0.5 -> NETWORK/CONTAINER/DEVICE
//	addresses.lock   locked while an address is allocated
//	last4, last6     the addresses that were allocated last
//
//	host_linux.go       the daemon's side of the folder
//	install_linux.go    installs the plugin and its configuration where runtimes look for them
//	follow_linux.go     follows the daemon's Node
//	addresses_linux.go  allocates addresses
//	protect_linux.go    delays a connection until the pod's policies are in force
//	plugin_linux.go     the commands of the specification; check_linux.go is CHECK
//	loopback_linux.go   the plugin "loopback", for runtimes that lack it
//	folder_linux.go     files and locks
package cni

import "net/netip"

// The default names of the plugin and of its network.
const (
	// Plugin is the program name that selects the plugin, and the plugin's type in configurations.
	Plugin = "coxswain-cni"
	// Loopback is the program name that selects the plugin for a container's loopback device.
	Loopback = "loopback"
	// NetworkName is the name of the network in configurations.
	NetworkName = "coxswain"
	// StateDir is the default state folder.
	StateDir = "/run/coxswain-cni"
)

// Network is the machine's part of the network, as the plugin needs it.
type Network struct {
	// Subnets are the Node's pod subnets. A container gets one address of each. The first address of a subnet is the
	// router's, the second the machine's.
	Subnets []netip.Prefix `json:"subnets"`
	// MTU is the MTU of container devices, in bytes; zero selects the router's own.
	MTU int `json:"mtu,omitempty"`
	// Policies makes the plugin ask the daemon (Host.Answer) before it connects a container of a pod.
	Policies bool `json:"policies,omitempty"`
}
