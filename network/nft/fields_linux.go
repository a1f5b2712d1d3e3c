package nft

import (
	"encoding/binary"
	"net/netip"
)

// Concat joins fields to the key or value of a set whose type is a concatenation: each begins at a multiple of four
// bytes, as in the kernel's registers.
func Concat(fields ...[]byte) []byte {
	var key []byte
	for _, f := range fields {
		key = append(key, f...)
		for len(key)%4 != 0 {
			key = append(key, 0)
		}
	}
	return key
}

// Address is the field ipv4_addr or ipv6_addr.
func Address(a netip.Addr) []byte { return a.AsSlice() }

// Protocol is the field inet_proto: unix.IPPROTO_TCP and others.
func Protocol(p uint8) []byte { return []byte{p} }

// Port is the field inet_service.
func Port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// Mark is the field mark, as of numbers that the kernel counts itself.
func Mark(m uint32) []byte { return binary.NativeEndian.AppendUint32(nil, m) }
