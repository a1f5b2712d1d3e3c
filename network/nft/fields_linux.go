package nft

import (
	"encoding/binary"
	"net/netip"
)

// Concat joins fields to the key or value of a set whose type is a concatenation. Each field begins at a multiple of
// four bytes, as in the kernel's registers.
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

// Address encodes the field ipv4_addr or ipv6_addr.
func Address(a netip.Addr) []byte { return a.AsSlice() }

// Protocol encodes the field inet_proto: unix.IPPROTO_TCP and others.
func Protocol(p uint8) []byte { return []byte{p} }

// Port encodes the field inet_service.
func Port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// Mark encodes the field mark, in the byte order of numbers that the kernel counts itself.
func Mark(m uint32) []byte { return binary.NativeEndian.AppendUint32(nil, m) }
