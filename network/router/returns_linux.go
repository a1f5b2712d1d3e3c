package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// returnByRouter routes replies back through the router when it returns packets of the machine to the machine: packets
// to a Service's address, to a pod of another machine in mode Routes, or to a pod in the machine's network. Otherwise
// the reply would bypass the router, and only the router can translate it back.
//
//	iifname "cox*" oifname "cox*" snat to 10.244.0.0
func returnByRouter(namespace *os.File, subnet netip.Prefix) error {
	own := subnet.Addr()
	err := nft.Once(namespace, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: "coxswain-returns", Family: tableFamily(own)})
		chain := t.AddChain(&nftables.Chain{Name: chainOf(subnet), Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		t.FlushChain(chain)
		t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(
			append(throughCable(expr.MetaKeyIIFNAME), throughCable(expr.MetaKeyOIFNAME)...),
			&expr.Immediate{Register: unix.NFT_REG_1, Data: own.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(tableFamily(own)), RegAddrMin: unix.NFT_REG_1},
		)})
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("route replies by the router: %w", err)
	}
	return nil
}

// byMachine marks connections between pods of this machine that pass the machine, and their replies.
const byMachine = 0x10000

// returnByMachine routes a pod's reply to another pod of the machine through the machine, if the request came that way,
// for example by a host port. Only the machine can translate it back. Both pods keep their addresses.
//
//	iifname "cox*" ip saddr 10.244.0.0/24 ip saddr != 10.244.0.1 ct mark set 0x10000
//	iifname "pod*" ct direction reply ct mark 0x10000 meta mark set 0x10000
func (r *Router) returnByMachine(subnet netip.Prefix) error {
	machine, register := subnet.Addr().Next(), uint32(unix.NFT_REG_1)
	mark := binary.NativeEndian.AppendUint32(nil, byMachine)
	request := append(through(expr.MetaKeyIIFNAME, machinePrefix), in(sourceOf(machine), subnet)...)
	request = append(request, notIn(sourceOf(machine), netip.PrefixFrom(machine, machine.BitLen()))...)
	request = append(request, &expr.Immediate{Register: register, Data: mark},
		&expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true})
	reply := append(through(expr.MetaKeyIIFNAME, podPrefix),
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{1}},
		&expr.Ct{Key: expr.CtKeyMARK, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: mark},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true})
	err := nft.Once(r.namespace, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: "coxswain-returns", Family: tableFamily(machine)})
		chain := t.AddChain(&nftables.Chain{Name: "by-machine-" + chainOf(subnet), Table: table,
			Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityMangle})
		t.FlushChain(chain)
		for _, rule := range [][]expr.Any{request, reply} {
			t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("route replies by the machine: %w", err)
	}
	rule := netlink.NewRule()
	rule.Mark, rule.Priority, rule.Table, rule.Family = byMachine, markRule, firstTable, family(machine)
	if err := r.inside.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route replies by the machine: %w", err)
	}
	return nil
}
