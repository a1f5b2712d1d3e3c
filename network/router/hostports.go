package router

import "net/netip"

// HostPort is a port of the machine that leads to a port of a pod.
type HostPort struct {
	// Address is that of the machine. The zero Addr, and an unspecified one, are all that the machine has.
	Address netip.Addr
	// Protocol is the number of TCP, UDP or SCTP.
	Protocol uint8
	// Port is the machine's, and PodPort the pod's.
	Port, PodPort uint16
}
