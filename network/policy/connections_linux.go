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

// End implements kernel. The next packet of a connection that has ended is a first one, to which the rules are put.
func (k *tables) End(denied func(Flow) bool) (ended int, err error) {
	h, err := conntrack(k.namespace)
	if err != nil {
		return 0, fmt.Errorf("connections: %w", err)
	}
	defer h.Close()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		n, failed := h.ConntrackDeleteFilters(netlink.ConntrackTable, family, deniedFlows(denied))
		ended += int(n)
		if failed != nil && !errors.Is(failed, unix.ENOENT) { // one that ended by itself meanwhile
			err = errors.Join(err, fmt.Errorf("connections: %w", failed))
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

// deniedFlows is a netlink.CustomConntrackFilter. Rules see a packet after its destination was translated, and before
// its source is: the destination is where answers come from.
type deniedFlows func(Flow) bool

func (denied deniedFlows) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	from, ok := netip.AddrFromSlice(c.Forward.SrcIP)
	to, valid := netip.AddrFromSlice(c.Reverse.SrcIP)
	if !ok || !valid {
		return false
	}
	f := Flow{Source: from.Unmap(), Destination: to.Unmap()}
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

// withoutPorts is what flows of protocols without ports have in place of the name of one that rules know.
const withoutPorts corev1.Protocol = "other"
