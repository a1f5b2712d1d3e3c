package controlplane

import (
	"net"
	"net/netip"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// HostAddress returns the address of this machine that other machines reach it at, IPv4 before IPv6: as for the
// kubelet, the address of the device with the default route, or else the first one that is not of this machine alone.
// The result is invalid if there is none.
func HostAddress() netip.Addr {
	if ip, err := utilnet.ChooseHostInterface(); err == nil {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsLoopback() {
			return a.Unmap()
		}
	}
	var v6 netip.Addr
	devices, _ := net.Interfaces() // a machine without devices has no address
	for _, device := range devices {
		if strings.HasPrefix(device.Name, podDevices) {
			continue
		}
		addrs, _ := device.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			switch {
			case err != nil || !p.Addr().IsGlobalUnicast():
			case p.Addr().Is4():
				return p.Addr()
			case !v6.IsValid():
				v6 = p.Addr()
			}
		}
	}
	return v6
}

// podDevices is the prefix of the names of a machine's devices to its pods, which come and go with the pods.
const podDevices = "cox"
