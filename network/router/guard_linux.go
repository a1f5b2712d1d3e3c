package router

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// guard creates the rules of the router that apply regardless of policies. They see packets after destination NAT of
// Services:
//
//	chain sources {   # prerouting
//	    iifname "pod*" fib saddr . iif oif 0 drop
//	    iifname "vxlan" fib saddr . iif oif 0 drop
//	}
//	chain tunnels {   # forward
//	    oifname "cox*" meta l4proto udp th dport 8472 drop
//	}
//
// A pod must send from its own addresses only, and a peer from addresses of its pods; rpFilter checks only IPv4. No
// packet to the machine may be VXLAN: the machine, or one of its peers, would accept it as packets of other pods. The
// routers' own VXLAN never passes here.
func guard(namespace *os.File) error {
	return nft.Once(namespace, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: "coxswain-router", Family: nftables.TableFamilyINet})
		t.FlushTable(table)
		sources := t.AddChain(&nftables.Chain{Name: "sources", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
		for _, device := range []string{podPrefix, vxlanDevice + "\x00"} {
			t.AddRule(&nftables.Rule{Table: table, Chain: sources, Exprs: append(through(expr.MetaKeyIIFNAME, device),
				&expr.Fib{Register: unix.NFT_REG_1, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
				&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binary.NativeEndian.AppendUint32(nil, 0)},
				&expr.Verdict{Kind: expr.VerdictDrop})})
		}
		tunnels := t.AddChain(&nftables.Chain{Name: "tunnels", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
		t.AddRule(&nftables.Rule{Table: table, Chain: tunnels,
			Exprs: drop(through(expr.MetaKeyOIFNAME, machinePrefix), isVXLAN())})
		if err := t.Commit(); err != nil {
			return fmt.Errorf("write rules of the router: %w", err)
		}
		return nil
	})
}

// through matches packets of devices with a name prefix. A prefix that ends with a zero byte is a whole name.
func through(direction expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: direction, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte(prefix)}}
}

// isVXLAN matches packets to the port of VXLAN.
func isVXLAN() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG_1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: nft.Protocol(unix.IPPROTO_UDP)},
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: nft.Port(VXLANPort)},
	}
}

// drop returns a rule that drops packets if all matches apply.
func drop(matches ...[]expr.Any) (rule []expr.Any) {
	for _, m := range matches {
		rule = append(rule, m...)
	}
	return append(rule, &expr.Verdict{Kind: expr.VerdictDrop})
}
