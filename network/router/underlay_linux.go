package router

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// guardUnderlay makes the machine accept VXLAN only from its peers, through the device that leads to them, and neither
// send nor forward any except the router's own. The kernel's VXLAN socket listens at all addresses of the machine, and
// every packet that it accepts counts as a packet of a peer's pods to the router. The rules are three chains and a set
// in the table "coxswain" of the machine's packet filter. Like the device, they stay when the process ends:
//
//	chain vxlan-input {
//	    meta l4proto udp th dport 8472 iifname != "uplink" drop
//	    meta l4proto udp th dport 8472 ip saddr != @vxlan-peers drop
//	}
//	chain vxlan-forward {
//	    iifname "cox*" meta l4proto udp th dport 8472 drop
//	}
//	chain vxlan-output {
//	    meta l4proto udp th dport 8472 meta skuid != 4294967295 drop
//	}
//
// The router's own packets belong to no user. Until SetPeers no VXLAN is accepted, unless an earlier process left
// peers.
func guardUnderlay(device string, address netip.Addr) error {
	err := nft.Once(nil, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: tableName, Family: tableFamily(address)})
		peers := peerSet(address)
		t.AddSet(peers, nil)
		add := func(name string, hook *nftables.ChainHook, rules ...[]expr.Any) {
			chain := t.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: hook, Priority: nftables.ChainPriorityFilter})
			t.FlushChain(chain)
			for _, r := range rules {
				t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r})
			}
		}
		elsewhere := notThrough(expr.MetaKeyIIFNAME, device+"\x00")
		stranger := []expr.Any{sourceOf(address),
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetID: peers.ID, SetName: peers.Name, Invert: true}}
		ofUser := []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: unix.NFT_REG_1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: []byte{0xff, 0xff, 0xff, 0xff}}}
		add("vxlan-input", nftables.ChainHookInput, drop(isVXLAN(), elsewhere), drop(isVXLAN(), stranger))
		add("vxlan-forward", nftables.ChainHookForward, drop(through(expr.MetaKeyIIFNAME, machinePrefix), isVXLAN()))
		add("vxlan-output", nftables.ChainHookOutput, drop(isVXLAN(), ofUser))
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("guard VXLAN in the packet filter: %w", err)
	}
	return nil
}

// peerSet returns the set of the machines that VXLAN is accepted from.
func peerSet(like netip.Addr) *nftables.Set {
	set := &nftables.Set{Table: &nftables.Table{Name: tableName, Family: tableFamily(like)}, Name: "vxlan-peers",
		KeyType: nftables.TypeIPAddr}
	if like.Is6() {
		set.KeyType = nftables.TypeIP6Addr
	}
	return set
}

// admitPeers replaces the machines that VXLAN is accepted from, in one transaction.
func admitPeers(local netip.Addr, all []Peer) error {
	err := nft.Once(nil, func(t *nft.Transaction) error {
		set := peerSet(local)
		t.FlushSet(set)
		admitted := map[netip.Addr]bool{}
		var elements []nftables.SetElement
		for _, p := range all {
			if p.Address.Is4() == local.Is4() && !admitted[p.Address] {
				admitted[p.Address] = true
				elements = append(elements, nftables.SetElement{Key: nft.Address(p.Address)})
			}
		}
		t.AddElements(set, elements)
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("set peers in the packet filter: %w", err)
	}
	return nil
}
