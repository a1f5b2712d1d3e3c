package router

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// Masquerade makes pods reach all destinations of the machine, from the machine's address: the machine forwards, and
// the table "coxswain" of its packet filter has a chain with one rule for each subnet. Both stay when the process ends,
// because pods do.
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

// masqueradeSubnet creates a chain for each subnet, so that several agents on a machine do not interfere:
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

// machinePrefix is the name prefix of the machine's ends of the Nodes' cables, by convention of the node agents.
const machinePrefix = "cox"
