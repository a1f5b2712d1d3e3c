package router

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// returnByRouter has answers come back to the router where the machine reaches a pod of another machine through it, as
// at a Service's address in the mode Routes. The answer to the machine's own address would be delivered there without
// the router, which alone knows that the Service was asked.
//
//	ip saddr 10.244.0.1 oifname "cox*" snat to 10.244.0.0
func returnByRouter(namespace *os.File, subnet netip.Prefix) error {
	own, machine := subnet.Addr(), subnet.Addr().Next()
	err := nft.Once(namespace, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: "coxswain-returns", Family: tableFamily(own)})
		chain := t.AddChain(&nftables.Chain{Name: chainOf(subnet), Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		t.FlushChain(chain)
		t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(
			in(sourceOf(machine), netip.PrefixFrom(machine, machine.BitLen())),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte(machinePrefix)},
			&expr.Immediate{Register: unix.NFT_REG_1, Data: own.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(tableFamily(own)), RegAddrMin: unix.NFT_REG_1},
		)})
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("answers by the router: %w", err)
	}
	return nil
}
