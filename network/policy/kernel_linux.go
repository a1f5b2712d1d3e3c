package policy

import (
	"encoding/binary"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// table returns the table that holds the rules.
func table() *nftables.Table {
	return &nftables.Table{Name: "coxswain-policy", Family: nftables.TableFamilyINet}
}

// Cleanup deletes the rules from a network namespace, or from the process's own if it is nil. Pods are not isolated
// afterwards.
func Cleanup(namespace *os.File) error { return nft.DeleteTable(namespace, table()) }

// tables writes rulesets to the kernel.
type tables struct {
	conn      *nft.Conn
	namespace *os.File
}

func openKernel(namespace *os.File) (kernel, error) {
	conn, err := nft.Open(namespace)
	if err != nil {
		return nil, err
	}
	return &tables{conn, namespace}, nil
}

// Close implements kernel. The rules stay.
func (k *tables) Close() { k.conn.Close() }

// Replace implements kernel. One transaction deletes the old table and creates the new one.
func (k *tables) Replace(r *Ruleset) error {
	t, err := k.conn.Begin()
	if err != nil {
		return err
	}
	t.AddTable(table()) // the deletion fails without a table
	t.DelTable(table())
	t.AddTable(table())
	w := &writer{Transaction: t, table: table()}
	c := &Changes{Chains: r.Chains}
	for _, s := range r.Sets {
		c.NewSets = append(c.NewSets, s)
	}
	w.apply(c)
	return t.Commit()
}

// Apply implements kernel.
func (k *tables) Apply(c *Changes) error {
	t, err := k.conn.Begin()
	if err != nil {
		return err
	}
	(&writer{Transaction: t, table: table()}).apply(c)
	return t.Commit()
}

// writer adds changes to a transaction.
type writer struct {
	*nft.Transaction
	table *nftables.Table
}

// apply orders changes by their references: rules and elements of maps refer to chains, and rules refer to sets.
func (w *writer) apply(c *Changes) {
	for _, e := range c.Elements {
		w.DeleteElements(w.set(e.Set), w.elements(e.Set, e.Gone))
	}
	for name := range c.Chains {
		w.AddChain(w.chain(name))
		w.FlushChain(&nftables.Chain{Name: name, Table: w.table})
	}
	for _, name := range c.OldChains {
		w.FlushChain(&nftables.Chain{Name: name, Table: w.table})
	}
	for _, s := range c.NewSets {
		set := w.set(s)
		w.AddSet(set, nil)
		all := make([]Element, 0, len(s.Elements))
		for e := range s.Elements {
			all = append(all, e)
		}
		w.AddElements(set, w.elements(s, all))
	}
	for _, e := range c.Elements {
		w.AddElements(w.set(e.Set), w.elements(e.Set, e.Come))
	}
	for name, rules := range c.Chains {
		for i := range rules {
			w.rule(name, &rules[i])
		}
	}
	for _, name := range c.OldChains {
		w.DelChain(&nftables.Chain{Name: name, Table: w.table})
	}
	for _, name := range c.OldSets {
		w.DelSet(&nftables.Set{Name: name, Table: w.table})
	}
}

func (w *writer) chain(name string) *nftables.Chain {
	chain := &nftables.Chain{Name: name, Table: w.table}
	for _, h := range Hooks {
		if h.Chain != name {
			continue
		}
		accept := nftables.ChainPolicyAccept
		chain.Type, chain.Policy, chain.Hooknum = nftables.ChainTypeFilter, &accept, nftables.ChainHookForward
		chain.Priority = nftables.ChainPriorityRef(*nftables.ChainPriorityFilter + nftables.ChainPriority(h.Priority))
		if h.Input {
			chain.Hooknum = nftables.ChainHookInput
		}
	}
	return chain
}

// maxComment limits the length of a comment.
const maxComment = 100

func (w *writer) set(s *Set) *nftables.Set {
	address := nftables.TypeIPAddr
	if s.V6 {
		address = nftables.TypeIP6Addr
	}
	set := &nftables.Set{Table: w.table, Name: s.Name, KeyType: address, Comment: s.Comment}
	set.Comment = set.Comment[:min(len(set.Comment), maxComment)]
	switch s.Kind {
	case Selves:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(address, address), true
	case Endpoints:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(address, nftables.TypeInetService), true
	case Blocks:
		set.Interval = true
	case Ports:
		set.KeyType, set.Interval = nftables.TypeInetService, true
	case Verdicts:
		set.IsMap, set.DataType = true, nftables.TypeVerdict
	}
	return set
}

// elements converts elements to the kernel's form. An interval is an element at its start and one after its end, unless
// it ends at the last possible value.
func (w *writer) elements(s *Set, list []Element) []nftables.SetElement {
	all := make([]nftables.SetElement, 0, len(list))
	for _, e := range list {
		switch s.Kind {
		case Addresses:
			all = append(all, nftables.SetElement{Key: nft.Address(e.First)})
		case Selves:
			all = append(all, nftables.SetElement{Key: nft.Concat(nft.Address(e.First), nft.Address(e.First))})
		case Endpoints:
			all = append(all, nftables.SetElement{Key: nft.Concat(nft.Address(e.First), nft.Port(e.Port))})
		case Blocks:
			all = append(all, nftables.SetElement{Key: nft.Address(e.First)})
			if after := e.Last.Next(); after.IsValid() {
				all = append(all, nftables.SetElement{Key: nft.Address(after), IntervalEnd: true})
			}
		case Ports:
			all = append(all, nftables.SetElement{Key: nft.Port(e.Port)})
			if e.LastPort < 65535 {
				all = append(all, nftables.SetElement{Key: nft.Port(e.LastPort + 1), IntervalEnd: true})
			}
		case Verdicts:
			all = append(all, nftables.SetElement{Key: nft.Address(e.First),
				VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: s.Elements[e]}})
		}
	}
	return all
}

func (w *writer) rule(chain string, r *Rule) {
	in := &nftables.Chain{Name: chain, Table: w.table}
	w.AddRule(&nftables.Rule{Table: w.table, Chain: in, Exprs: expressions(r)})
}

// protocols are the numbers of the protocols in policies.
var protocols = map[corev1.Protocol]byte{
	corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP, corev1.ProtocolSCTP: unix.IPPROTO_SCTP,
}

// first is the register in use. firstWord is the same register as a 32-bit one, and the others follow it.
const (
	first     = 1
	firstWord = unix.NFT_REG32_00
)

// expressions converts a rule to the kernel's expressions.
func expressions(r *Rule) (e []expr.Any) {
	if r.Established {
		e = append(e, &expr.Ct{Key: expr.CtKeySTATE, Register: first},
			&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4, Xor: make([]byte, 4),
				Mask: binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: make([]byte, 4)})
	}
	if r.Midstream {
		e = append(e, midstream()...)
	}
	if v6, one := familyOf(r); one {
		e = append(e, &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: first}, equal([]byte{protocolFamily(v6)}))
		e = append(e, matchAddresses(r, v6)...)
	}
	if r.Protocol != "" {
		e = append(e, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first}, equal([]byte{protocols[r.Protocol]}))
	}
	e = append(e, matchPorts(r)...)
	switch {
	case r.BySource != "" || r.ByDestination != "": // the map has the verdict
	case r.Verdict == Jump:
		e = append(e, &expr.Verdict{Kind: expr.VerdictJump, Chain: r.Chain})
	case r.Verdict == Drop:
		e = append(e, &expr.Verdict{Kind: expr.VerdictDrop})
	default:
		e = append(e, &expr.Verdict{Kind: expr.VerdictAccept})
	}
	return e
}

// midstream matches TCP packets that are the first ones of a connection the kernel sees, but not the first ones of the
// connection: of the flags SYN, ACK, FIN and RST they do not have just SYN.
func midstream() []expr.Any {
	const flags, syn, all = 13, 0x02, 0x17
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: first},
		equal(binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW)),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first}, equal([]byte{unix.IPPROTO_TCP}),
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 1, Mask: []byte{all}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: []byte{syn}},
	}
}

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: data} }

// familyOf returns the family of a rule's packets, by its sets. one is false if they may have either family.
func familyOf(r *Rule) (v6, one bool) {
	for _, name := range []string{r.Source, r.Destination, r.Selves, r.Endpoints, r.BySource, r.ByDestination} {
		if name != "" {
			return isV6(name), true
		}
	}
	return false, false
}

// isV6 derives the family from a set's name.
func isV6(name string) bool {
	for i := range len(name) {
		if name[i] == '4' || name[i] == '6' {
			return name[i] == '6'
		}
	}
	return false
}

func protocolFamily(v6 bool) byte {
	if v6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// source, destination and port load a field of the packet's headers into registers of a possibly concatenated key.
func source(v6 bool, register uint32) *expr.Payload {
	if v6 {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16}
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
}

func destination(v6 bool, register uint32) *expr.Payload {
	p := source(v6, register)
	p.Offset += p.Len
	return p
}

func port(register uint32) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// second returns the register after an address.
func second(v6 bool) uint32 {
	if v6 {
		return firstWord + uint32(len(netip.IPv6Unspecified().AsSlice()))/4
	}
	return firstWord + 1
}

func matchAddresses(r *Rule, v6 bool) (e []expr.Any) {
	if r.Source != "" {
		e = append(e, source(v6, first), &expr.Lookup{SourceRegister: first, SetName: r.Source})
	}
	if r.Destination != "" {
		e = append(e, destination(v6, first), &expr.Lookup{SourceRegister: first, SetName: r.Destination})
	}
	if r.Selves != "" {
		e = append(e, source(v6, firstWord), destination(v6, second(v6)),
			&expr.Lookup{SourceRegister: firstWord, SetName: r.Selves})
	}
	if r.BySource != "" {
		e = append(e, source(v6, first), verdicts(r.BySource))
	}
	if r.ByDestination != "" {
		e = append(e, destination(v6, first), verdicts(r.ByDestination))
	}
	return e
}

func verdicts(name string) expr.Any {
	return &expr.Lookup{SourceRegister: first, SetName: name, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}
}

func matchPorts(r *Rule) (e []expr.Any) {
	switch {
	case r.Ports.First != 0 && r.Ports.First == r.Ports.Last:
		e = append(e, port(first), equal(nft.Port(r.Ports.First)))
	case r.Ports != PortRange{}:
		e = append(e, port(first), &expr.Range{Op: expr.CmpOpEq, Register: first,
			FromData: nft.Port(r.Ports.First), ToData: nft.Port(r.Ports.Last)})
	}
	if r.PortSet != "" {
		e = append(e, port(first), &expr.Lookup{SourceRegister: first, SetName: r.PortSet})
	}
	if r.Endpoints != "" {
		v6 := isV6(r.Endpoints)
		e = append(e, destination(v6, firstWord), port(second(v6)),
			&expr.Lookup{SourceRegister: firstWord, SetName: r.Endpoints})
	}
	return e
}
