package nft_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/nft"
)

// namespace creates a network namespace. It skips the test if that is not permitted or the kernel has no nftables.
func namespace(tb testing.TB) *os.File {
	tb.Helper()
	f, err := netns.New()
	if err == nil {
		err = nft.Supported(f)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		tb.Skipf("SKIPPED: nftables take root and a kernel that has them, and are not tested here: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

var services = &nftables.Set{
	Name: "services", IsMap: true, DataType: nftables.TypeVerdict, Concatenation: true,
	KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService),
}

func open(tb testing.TB, in *os.File) *nft.Conn {
	tb.Helper()
	c, err := nft.Open(in)
	require.NoError(tb, err)
	tb.Cleanup(c.Close)
	return c
}

func begin(tb testing.TB, c *nft.Conn) *nft.Transaction {
	tb.Helper()
	t, err := c.Begin()
	require.NoError(tb, err)
	return t
}

func elements(count int) []nftables.SetElement {
	all := make([]nftables.SetElement, count)
	for i := range all {
		address := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		all[i] = nftables.SetElement{
			Key:         nft.Concat(nft.Address(address), nft.Protocol(unix.IPPROTO_TCP), nft.Port(80)),
			VerdictData: &expr.Verdict{Kind: expr.VerdictDrop},
		}
	}
	return all
}

func Example() {
	conn, err := nft.Open(nil) // of the process's own namespace
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	t, err := conn.Begin()
	if err != nil {
		fmt.Println(err)
		return
	}
	table := t.AddTable(&nftables.Table{Name: "example", Family: nftables.TableFamilyIPv4})
	set := &nftables.Set{Table: table, Name: "blocked", KeyType: nftables.TypeIPAddr}
	t.AddSet(set, nil)
	t.AddElements(set, []nftables.SetElement{{Key: nft.Address(netip.MustParseAddr("192.0.2.1"))}})
	// t.Commit() would create the table.
}

func TestTransaction_HoldsManyElements(t *testing.T) {
	t.Parallel()
	c, set := open(t, namespace(t)), *services
	tx := begin(t, c)
	set.Table = tx.AddTable(&nftables.Table{Name: "test", Family: nftables.TableFamilyIPv4})
	tx.AddSet(&set, nil)
	tx.AddElements(&set, elements(20_000))
	require.NoError(t, tx.Commit())
	got, err := begin(t, c).GetSetElements(&set)
	require.NoError(t, err)
	require.Len(t, got, 20_000)

	tx = begin(t, c)
	tx.DeleteElements(&set, elements(19_000))
	require.NoError(t, tx.Commit())
	got, err = begin(t, c).GetSetElements(&set)
	require.NoError(t, err)
	require.Len(t, got, 1_000)
}

func TestTransaction_IsAtomic(t *testing.T) {
	t.Parallel()
	in := namespace(t)
	c, set := open(t, in), *services
	tx := begin(t, c)
	set.Table = tx.AddTable(&nftables.Table{Name: "test", Family: nftables.TableFamilyIPv4})
	tx.AddSet(&set, nil)
	require.NoError(t, tx.Commit())

	tx = begin(t, c)
	tx.AddElements(&set, elements(10))
	tx.AddRule(&nftables.Rule{Table: set.Table, Chain: &nftables.Chain{Name: "missing", Table: set.Table}})
	require.ErrorIs(t, tx.Commit(), unix.ENOENT)
	got, err := begin(t, c).GetSetElements(&set)
	require.NoError(t, err)
	require.Empty(t, got)

	require.NoError(t, nft.DeleteTable(in, set.Table))
	require.NoError(t, nft.DeleteTable(in, set.Table), "it is gone already")
	tables, err := begin(t, c).ListTables()
	require.NoError(t, err)
	require.Empty(t, tables)
}

func BenchmarkTransaction_OneElement(b *testing.B) {
	c, set := open(b, namespace(b)), *services
	tx := begin(b, c)
	set.Table = tx.AddTable(&nftables.Table{Name: "test", Family: nftables.TableFamilyIPv4})
	tx.AddSet(&set, nil)
	tx.AddElements(&set, elements(10_000))
	require.NoError(b, tx.Commit())
	one := elements(10_001)[10_000:]
	for b.Loop() {
		tx := begin(b, c)
		tx.AddElements(&set, one)
		require.NoError(b, tx.Commit())
		tx = begin(b, c)
		tx.DeleteElements(&set, one)
		require.NoError(b, tx.Commit())
	}
}
