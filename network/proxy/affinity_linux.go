package proxy

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
)

// deleteStaleClients deletes entries of a Service's session affinity map that refer to a former endpoint. Until then,
// for about a millisecond after the commit, new connections of these clients still go there.
func (b *ruleset) deleteStaleClients(f family, name string) error {
	s := b.services[b.staleClients[f][name]]
	if s == nil {
		return nil
	}
	current := map[string]bool{}
	for _, e := range s.rules[f].affinity[name] {
		current[fields(e.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, e.Port()))] = true
	}
	tx, err := b.tables[f].kernel.Begin()
	if err != nil {
		return err
	}
	set := affinitySet(f.table(), f, name, 1)
	clients, err := tx.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("list clients in %s: %w", name, err)
	}
	var stale []nftables.SetElement
	for _, c := range clients {
		if !current[string(c.Val)] {
			stale = append(stale, nftables.SetElement{Key: c.Key, Val: c.Val})
		}
	}
	if len(stale) == 0 {
		return nil
	}
	// An entry that timed out since the list is added before it is deleted, because the deletion would fail otherwise.
	tx.AddElements(set, stale)
	tx.DeleteElements(set, stale)
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("delete clients in %s: %w", name, err)
	}
	return nil
}
