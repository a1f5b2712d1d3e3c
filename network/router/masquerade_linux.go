package router

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// Masquerade has pods reach whatever the machine reaches, from the machine's address: the machine forwards, and the
// table "coxswain" of its packet filter has a chain with one rule for each subnet. They stay when the process ends, as
// pods do.
func (r *Router) Masquerade() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.masquerades = true
	return r.masquerade()
}

func (r *Router) masquerade() error {
	if !r.masquerades {
		return nil
	}
	for _, subnets := range r.devices {
		for _, s := range subnets {
			if err := masqueradeSubnet(s); err != nil {
				return fmt.Errorf("masquerade: %w", err)
			}
		}
	}
	return nil
}

// masqueradeSubnet has a chain of its own for each subnet, so that several agents of a machine do not meet:
//
//	ip saddr 10.244.0.0/24 oifname != "cox*" masquerade
func masqueradeSubnet(subnet netip.Prefix) error {
	if err := forwardFor(subnet); err != nil {
		return err
	}
	return nft.Once(nil, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: tableName, Family: tableFamily(subnet.Addr())})
		chain := t.AddChain(&nftables.Chain{Name: chainOf(subnet), Table: table,
			Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource})
		t.FlushChain(chain)
		t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(in(sourceOf(subnet.Addr()), subnet),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: []byte(machinePrefix)},
			&expr.Masq{},
		)})
		return t.Commit()
	})
}

// machinePrefix begins the names of the machine's ends of the Nodes' cables, by custom of the node agents.
const machinePrefix = "cox"
