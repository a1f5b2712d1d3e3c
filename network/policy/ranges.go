package policy

import (
	"net"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	utilnet "k8s.io/utils/net"
)

// block is a range of addresses of one family. It includes both ends.
type block struct{ first, last netip.Addr }

// parseBlock parses a CIDR like the API server, which allows leading zeros. ok is false if it is malformed.
func parseBlock(cidr string) (b block, ok bool) {
	_, n, err := utilnet.ParseCIDRSloppy(cidr)
	if err != nil {
		return b, false
	}
	first, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return b, false
	}
	bits, _ := n.Mask.Size()
	if first.Is4In6() && len(n.Mask) == net.IPv6len {
		if bits -= 96; bits < 0 {
			return b, false
		}
	}
	return blockOf(netip.PrefixFrom(first.Unmap(), bits)), true
}

func blockOf(p netip.Prefix) block {
	first := p.Masked().Addr()
	last := first.AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last) // never fails: the length is an address's
	return block{first, end}
}

// blocksOf returns the addresses of an ipBlock: its CIDR without the exceptions. A malformed one has none.
func blocksOf(b *networkingv1.IPBlock) []block {
	whole, ok := parseBlock(b.CIDR)
	if !ok {
		return nil
	}
	var holes []block
	for _, e := range b.Except {
		hole, ok := parseBlock(e)
		if !ok {
			return nil
		}
		if hole.first.BitLen() == whole.first.BitLen() {
			holes = append(holes, hole)
		}
	}
	return without(whole, mergeBlocks(holes))
}

// without cuts holes, which must be merged, out of a block.
func without(whole block, holes []block) (left []block) {
	first := whole.first
	for _, h := range holes {
		if h.last.Less(first) || whole.last.Less(h.first) {
			continue
		}
		if first.Less(h.first) {
			left = append(left, block{first, h.first.Prev()})
		}
		if first = h.last.Next(); !first.IsValid() || whole.last.Less(first) {
			return left
		}
	}
	return append(left, block{first, whole.last})
}

// mergeBlocks sorts blocks and joins blocks that overlap or touch: the kernel rejects them in interval sets.
func mergeBlocks(all []block) []block {
	slices.SortFunc(all, func(a, b block) int { return a.first.Compare(b.first) })
	merged := all[:0]
	for _, b := range all {
		if n := len(merged); n > 0 && merged[n-1].first.BitLen() == b.first.BitLen() {
			if after := merged[n-1].last.Next(); !after.IsValid() || b.first.Compare(after) <= 0 {
				if merged[n-1].last.Less(b.last) {
					merged[n-1].last = b.last
				}
				continue
			}
		}
		merged = append(merged, b)
	}
	return merged
}

// allPorts contains every port of a protocol.
var allPorts = PortRange{0, 65535}

// mergePorts sorts ranges of ports and joins ranges that overlap or touch.
func mergePorts(all []PortRange) []PortRange {
	slices.SortFunc(all, func(a, b PortRange) int { return int(a.First) - int(b.First) })
	merged := all[:0]
	for _, r := range all {
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
		} else {
			merged = append(merged, r)
		}
	}
	return merged
}
