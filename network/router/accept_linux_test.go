package router_test

import (
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/network/nft"
)

func TestAcceptForwarded_HandlesFiltersThatDropLater(t *testing.T) {
	t.Parallel()
	m, other := newMachine(t), newMachine(t)
	segment(t, m, other)
	r := m.router("cox0", "10.1.0.0/24")
	pod := m.pod(r, "10.1.0.5")
	other.serve("other")
	m.do(r.Masquerade)
	pod.reaches("192.0.2.2", "other to 192.0.2.1")
	m.dropForwarded()
	require.NotContains(t, pod.ask("192.0.2.2"), "other to")
	m.do(r.AcceptForwarded)
	m.do(r.AcceptForwarded) // again
	pod.reaches("192.0.2.2", "other to 192.0.2.1")
	require.Equal(t, 2, m.forwardRules(), "one rule for each direction")
}

func TestAcceptForwarded_ChangesNoFiltersWithoutForwarding(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	r := m.router("cox0", "10.1.0.0/24")
	m.dropForwarded()
	m.do(r.AcceptForwarded)
	require.Zero(t, m.forwardRules())
}

// forwardRules counts the rules of the chain FORWARD.
func (m machine) forwardRules() (count int) {
	m.t.Helper()
	m.do(func() error {
		return nft.Once(nil, func(t *nft.Transaction) error {
			table := &nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}
			rules, err := t.GetRules(table, &nftables.Chain{Name: "FORWARD", Table: table})
			count = len(rules)
			return err
		})
	})
	return count
}
