package router

import (
	"encoding/binary"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// filterSources drops what pods send in IPv6 from addresses that are not behind their device, as rpFilter does in IPv4:
//
//	iifname "pod*" fib saddr . iif oif 0 drop
func filterSources(namespace *os.File) error {
	return nft.Once(namespace, func(t *nft.Transaction) error {
		table := t.AddTable(&nftables.Table{Name: "coxswain-router", Family: nftables.TableFamilyIPv6})
		t.FlushTable(table)
		chain := t.AddChain(&nftables.Chain{Name: "sources", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
		const register = unix.NFT_REG_1
		t.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register},
			&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte(podPrefix)},
			&expr.Fib{Register: register, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binary.NativeEndian.AppendUint32(nil, 0)},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		return t.Commit()
	})
}
