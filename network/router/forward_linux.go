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

// forwardFor has the machine forward between a subnet's pods and others: it turns the kernel's switch, passes the
// machine's other packet filters, and adds a rule by which nobody outside passes for a pod.
func forwardFor(subnet netip.Prefix) error {
	if err := os.WriteFile(forwardingFile(subnet.Addr()), []byte("1"), 0o644); err != nil {
		return err
	}
	return errors.Join(guardSubnet(subnet), acceptForwarded(subnet.Addr()))
}

// guardSubnet drops what comes to the machine from elsewhere and has the address of a pod of the machine as its source:
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
		return fmt.Errorf("sources of packets to pods: %w", err)
	}
	return nil
}

func guardOf(subnet netip.Prefix) string { return "sources-" + chainOf(subnet) }

func notThrough(direction expr.MetaKey, prefix string) []expr.Any {
	match := through(direction, prefix)
	match[1].(*expr.Cmp).Op = expr.CmpOpNeq
	return match
}

// acceptedBy marks the rules that a router adds to chains of others.
var acceptedBy = userdata.AppendString(nil, userdata.TypeComment, "coxswain: pods")

// acceptForwarded has the chains of others accept what the machine forwards for pods, where they drop what no rule of
// theirs accepts. Such is iptables' FORWARD once Docker was started. A rule of ours in a chain of ours would not do:
// each chain has to accept a packet. The rules stay when the process ends; RemoveMachine removes them.
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

// eachForwardChain calls do with the chains of others that see what the machine forwards, and our rules in them.
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
		return fmt.Errorf("chains that see what is forwarded: %w", err)
	}
	return nil
}

// hasPods reports whether pods are connected. It is true where that is not known.
func (r *Router) hasPods() bool {
	devices, err := r.inside.LinkList()
	return err != nil || slices.ContainsFunc(devices, func(d netlink.Link) bool {
		return strings.HasPrefix(d.Attrs().Name, podPrefix)
	})
}
