package proxy

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// masqueradeMark is the bit of a packet's mark that requests masquerading. It is kube-proxy's default.
const masqueradeMark = 0x4000

// firstRegister is the first of the kernel's sixteen registers of four bytes. A concatenation begins there.
const firstRegister = unix.NFT_REG32_00

// rule builds an nftables rule. Loads fill one register after another.
type rule struct {
	family family
	list   []expr.Any
	next   uint32
}

func (f family) rule() *rule { return &rule{family: f, next: firstRegister} }

func (f family) tableFamily() nftables.TableFamily {
	if f == ipv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// size returns the size of an address in bytes.
func (f family) size() uint32 {
	if f == ipv6 {
		return 16
	}
	return 4
}

func (r *rule) add(e ...expr.Any) *rule {
	r.list = append(r.list, e...)
	return r
}

// take allocates the register for the next field of a size.
func (r *rule) take(bytes uint32) uint32 {
	register := r.next
	r.next += (bytes + 3) / 4
	return register
}

// restart makes the next load begin at the first register.
func (r *rule) restart() *rule {
	r.next = firstRegister
	return r
}

func (r *rule) saddr() *rule { return r.header(12, 8) }
func (r *rule) daddr() *rule { return r.header(16, 24) }

func (r *rule) header(v4, v6 uint32) *rule {
	offset := v4
	if r.family == ipv6 {
		offset = v6
	}
	n := r.family.size()
	return r.add(&expr.Payload{DestRegister: r.take(n), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n})
}

func (r *rule) l4proto() *rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r.take(1)})
}

// dport loads the destination port, which is at the same offset in all protocols of Services.
func (r *rule) dport() *rule {
	return r.add(&expr.Payload{DestRegister: r.take(2), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
}

func (r *rule) constant(b []byte) *rule {
	return r.add(&expr.Immediate{Register: r.take(uint32(len(b))), Data: b})
}

// servicePort loads the address, protocol and port of a Service.
func (r *rule) servicePort(c *chain) *rule {
	if !c.address.IsValid() {
		return r.daddr().l4proto().dport()
	}
	return r.constant(c.address.AsSlice()).constant([]byte{c.protocol}).
		constant(binary.BigEndian.AppendUint16(nil, c.port))
}

// endpoint replaces the port of a Service, loaded at a register, with one of its endpoints.
func (r *rule) endpoint(register uint32, c *chain) *rule {
	return r.add(&expr.Numgen{Register: r.take(4), Modulus: uint32(c.count), Type: unix.NFT_NG_RANDOM,
		Offset: base(c.local)}).mapped(register, endpoints.name(), register)
}

// in continues if the value loaded from the first register on is in a set.
func (r *rule) in(set string) *rule {
	return r.add(&expr.Lookup{SourceRegister: firstRegister, SetName: set}).restart()
}

// mapped replaces the key at a register with its value in a map. If there is none, the rule does not match.
func (r *rule) mapped(key uint32, set string, value uint32) *rule {
	return r.add(&expr.Lookup{SourceRegister: key, DestRegister: value, IsDestRegSet: true, SetName: set})
}

// verdict executes the verdict of a map for the value loaded from the first register on.
func (r *rule) verdict(set string) *rule {
	return r.mapped(firstRegister, set, unix.NFT_REG_VERDICT)
}

func (r *rule) dnat(register uint32) *rule {
	proto := register + r.family.size()/4
	return r.add(&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(r.family.tableFamily()), RegAddrMin: register,
		RegProtoMin: proto, Specified: true})
}

func (r *rule) remember(set string, timeout time.Duration, client, endpoint uint32) *rule {
	return r.add(&expr.Dynset{SrcRegKey: client, SrcRegData: endpoint, SetName: set, Timeout: timeout,
		Operation: unix.NFT_DYNSET_OP_UPDATE})
}

// within compares an address, the only loaded value, with a range.
func (r *rule) within(p netip.Prefix, op expr.CmpOp) *rule {
	n := r.family.size()
	mask, _ := p.Addr().Prefix(0) // zeros
	ones := mask.Addr().AsSlice()
	for i := range p.Bits() {
		ones[i/8] |= 1 << (7 - i%8)
	}
	return r.add(
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: n, Mask: ones,
			Xor: make([]byte, n)},
		&expr.Cmp{Op: op, Register: firstRegister, Data: p.Masked().Addr().AsSlice()}).restart()
}

// isNew continues for the first packet of a connection.
func (r *rule) isNew() *rule {
	return r.add(&expr.Ct{Key: expr.CtKeySTATE, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: number(expr.CtStateBitNEW), Xor: number(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: number(0)})
}

// fromHere continues for packets of this namespace's own processes.
func (r *rule) fromHere() *rule {
	return r.add(&expr.Fib{Register: firstRegister, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: number(unix.RTN_LOCAL)})
}

func (r *rule) isTCP() *rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: []byte{unix.IPPROTO_TCP}})
}

// setMark changes the packet's mark to (mark & mask) ^ xor.
func (r *rule) setMark(mask, xor uint32) *rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: number(mask),
			Xor: number(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister, SourceRegister: true})
}

// isMarked continues for packets marked for masquerading.
func (r *rule) isMarked() *rule {
	return r.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: firstRegister},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4, Mask: number(masqueradeMark),
			Xor: number(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: number(0)})
}

func (r *rule) masquerade() *rule { return r.add(&expr.Masq{FullyRandom: true}) }

func (r *rule) jump(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func (r *rule) goTo(chain string) *rule {
	return r.add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

func (r *rule) drop() *rule { return r.add(&expr.Verdict{Kind: expr.VerdictDrop}) }

func (r *rule) accept() *rule { return r.add(&expr.Verdict{Kind: expr.VerdictReturn}) }

func (r *rule) reset() *rule { return r.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}) }

// unreachable answers with the ICMP message for a port without a listener.
func (r *rule) unreachable() *rule {
	code := uint8(3)
	if r.family == ipv6 {
		code = 4
	}
	return r.add(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}

// number encodes a number in the kernel's own byte order.
func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
