package router

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// forwardFor makes the machine forward between a subnet's pods and other hosts: it enables forwarding in the kernel,
// accepts the packets in the machine's other packet filters, and adds a rule against forged pod addresses from outside.
func forwardFor(subnet netip.Prefix) error {
	if err := os.WriteFile(forwardingFile(subnet.Addr()), []byte("1"), 0o644); err != nil {
		return err
	}
	return errors.Join(guardSubnet(subnet), acceptForwarded(subnet.Addr()))
}

// guardSubnet drops packets that arrive from elsewhere with a source address of the machine's pods:
//
//	iifname != "cox*" iifname != "lo" ip saddr 10.244.0.0/24 drop
func guardSubnet(subnet netip.Prefix) error {
	err := nft.Once(nil, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: tableName, Family: tableFamily(subnet.Addr())})
		chain := t.AddChain(&nftables.Chain{Name: guardOf(subnet), Table: table,
			Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
		t.FlushChain(chain)
		t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: drop(
			notThrough(expr.MetaKeyIIFNAME, machinePrefix), notThrough(expr.MetaKeyIIFNAME, "lo\x00"),
			in(sourceOf(subnet.Addr()), subnet))})
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("guard sources of packets to pods: %w", err)
	}
	return nil
}

func guardOf(subnet netip.Prefix) string { return "sources-" + chainOf(subnet) }

func notThrough(direction expr.MetaKey, prefix string) []expr.Any {
	match := through(direction, prefix)
	match[1].(*expr.Cmp).Op = expr.CmpOpNeq
	return match
}

// acceptedBy is the comment of the rules that a router adds to chains of other programs.
var acceptedBy = userdata.AppendString(nil, userdata.TypeComment, "coxswain: pods")

// acceptForwarded adds rules that accept the machine's forwarded packets of pods to chains of other programs that drop
// by default, such as iptables' FORWARD after Docker started. A rule in our own chain would not suffice, since every
// chain has to accept a packet. The rules stay when the process ends; RemoveMachine removes them.
func acceptForwarded(like netip.Addr) error {
	return eachForwardChain(like, func(t *nft.Transaction, chain *nftables.Chain, ours []*nftables.Rule) {
		if len(ours) > 0 || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
			return
		}
		for _, direction := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
			t.InsertRule(&nftables.Rule{Table: chain.Table, Chain: chain, UserData: acceptedBy,
				Exprs: append(through(direction, machinePrefix), &expr.Verdict{Kind: expr.VerdictAccept})})
		}
	})
}

// eachForwardChain calls do with the forward chains of other programs, and our rules in them.
func eachForwardChain(like netip.Addr, do func(*nft.Transaction, *nftables.Chain, []*nftables.Rule)) error {
	err := nft.Once(nil, func(t *nft.Transaction) error {
		for _, family := range []nftables.TableFamily{tableFamily(like), nftables.TableFamilyINet} {
			chains, err := t.ListChainsOfTableFamily(family)
			if err != nil {
				return err
			}
			for _, c := range chains {
				if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || c.Table.Name == tableName {
					continue
				}
				rules, err := t.GetRules(c.Table, c)
				if err != nil {
					return err
				}
				var ours []*nftables.Rule
				for _, r := range rules {
					if bytes.Equal(r.UserData, acceptedBy) {
						ours = append(ours, r)
					}
				}
				do(t, c, ours)
			}
		}
		return t.Commit()
	})
	if err != nil {
		return fmt.Errorf("edit forward chains: %w", err)
	}
	return nil
}

// hasPods reports whether pods are connected. It returns true if that is unknown.
func (r *Router) hasPods() bool {
	devices, err := r.inside.LinkList()
	return err != nil || slices.ContainsFunc(devices, func(d netlink.Link) bool {
		return strings.HasPrefix(d.Attrs().Name, podPrefix)
	})
}
