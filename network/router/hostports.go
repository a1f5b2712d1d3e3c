package router

import "net/netip"

// HostPort forwards a port of the machine to a port of a pod.
type HostPort struct {
	// Address is an address of the machine. The zero Addr, or an unspecified one, stands for all of them.
	Address netip.Addr
	// Protocol is the protocol number of TCP, UDP or SCTP.
	Protocol uint8
	// Port is the machine's, and PodPort the pod's.
	Port, PodPort uint16
}
