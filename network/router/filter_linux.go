package router

import (
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the table of the machine's packet filter with all of a router's rules, one for each family.
const tableName = "coxswain"

func tableFamily(a netip.Addr) nftables.TableFamily {
	if a.Is4() {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}

// subnetChain begins the part of a chain's name that identifies a Node's subnet.
const subnetChain = "pods-"

// chainOf returns the name of a chain for a Node's subnet.
func chainOf(subnet netip.Prefix) string {
	return subnetChain + strings.ReplaceAll(subnet.Addr().String(), ":", "-")
}

// forwardingFile returns the file that switches the machine's forwarding of an address's family.
func forwardingFile(a netip.Addr) string {
	if a.Is4() {
		return "/proc/sys/net/ipv4/ip_forward"
	}
	return "/proc/sys/net/ipv6/conf/all/forwarding"
}

// sourceOf loads a packet's source into the first register.
func sourceOf(a netip.Addr) *expr.Payload {
	if a.Is4() {
		return header(12, 4)
	}
	return header(8, 16)
}

// destinationOf loads a packet's destination into the first register.
func destinationOf(a netip.Addr) *expr.Payload {
	if a.Is4() {
		return header(16, 4)
	}
	return header(24, 16)
}

func header(offset, length uint32) *expr.Payload {
	return &expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func in(field *expr.Payload, p netip.Prefix) []expr.Any    { return compare(field, p, expr.CmpOpEq) }
func notIn(field *expr.Payload, p netip.Prefix) []expr.Any { return compare(field, p, expr.CmpOpNeq) }

func compare(field *expr.Payload, p netip.Prefix, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		field,
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: field.Len,
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, field.Len)},
		&expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: p.Addr().AsSlice()},
	}
}
