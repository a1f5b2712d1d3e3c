package router

import (
	"encoding/binary"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// setting is an IPv4 setting of a device (linux/ip.h). Settings are changed by netlink, because /proc/sys may be
// read-only, as in containers.
type setting uint16

const (
	forwarding    setting = 1
	sendRedirects setting = 6
	rpFilter      setting = 8
	routeLocalnet setting = 26
)

// strict is an rpFilter that accepts a packet only if the route to its source leads through the device that it came
// from (RFC 3704).
const strict = 1

// set changes settings of a device in a namespace; nil stands for the process's.
func set(namespace *os.File, device netlink.Link, values map[setting]uint32) error {
	const inetConf = 1 // IFLA_INET_CONF of linux/if_link.h
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(device.Attrs().Index)
	req.AddData(m)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	conf := families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	for s, value := range values {
		conf.AddRtAttr(int(s), binary.NativeEndian.AppendUint32(nil, value))
	}
	req.AddData(families)
	return netns.Do(namespace, func() error {
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
}
