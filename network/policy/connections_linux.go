package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// End implements kernel. The next packet of an ended connection counts as a first packet, so the rules apply to it.
func (k *tables) End(denied func(Flow) bool) (ended int, err error) {
	h, err := conntrack(k.namespace)
	if err != nil {
		return 0, fmt.Errorf("open conntrack: %w", err)
	}
	defer h.Close()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		n, failed := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, deniedFlows(denied))
		ended += int(n)
		if failed != nil && !errors.Is(failed, unix.ENOENT) { // skip one that ended by itself
			err = errors.Join(err, fmt.Errorf("delete connections: %w", failed))
		}
	}
	return ended, err
}

func conntrack(namespace *os.File) (h *netlink.Handle, err error) {
	if namespace == nil {
		return netlink.NewHandle(unix.NETLINK_NETFILTER)
	}
	raw, err := namespace.SyscallConn()
	if err != nil {
		return nil, err
	}
	problem := raw.Control(func(fd uintptr) {
		h, err = netlink.NewHandleAt(netns.NsHandle(fd), unix.NETLINK_NETFILTER)
	})
	return h, errors.Join(problem, err)
}

// deniedFlows is a netlink.CustomConntrackFilter. Rules see a packet after destination NAT and before source NAT: the
// destination is the source of the reply direction.
type deniedFlows func(Flow) bool

func (denied deniedFlows) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	source, ok := netip.AddrFromSlice(c.Forward.SrcIP)
	destination, valid := netip.AddrFromSlice(c.Reverse.SrcIP)
	if !ok || !valid {
		return false
	}
	f := Flow{Source: source.Unmap(), Destination: destination.Unmap()}
	for name, number := range protocols {
		if number == c.Forward.Protocol {
			f.Protocol, f.Port = name, c.Reverse.SrcPort
		}
	}
	if f.Protocol == "" {
		f.Protocol = withoutPorts
	}
	return denied(f)
}

// withoutPorts stands for all protocols without ports, which rules do not name.
const withoutPorts corev1.Protocol = "other"
