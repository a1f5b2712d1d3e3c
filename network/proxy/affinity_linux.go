package proxy

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
)

// forgetClients deletes from a map of clients those that are remembered with what is no endpoint of the Service. Until
// then, for about a millisecond after the commit, their new connections still lead there.
func (b *rulebook) forgetClients(f family, name string) error {
	s := b.services[b.forget[f][name]]
	if s == nil {
		return nil
	}
	left := map[string]bool{}
	for _, e := range s.rules[f].affinity[name] {
		left[fields(e.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, e.Port()))] = true
	}
	tx, err := b.tables[f].kernel.Begin()
	if err != nil {
		return err
	}
	set := affinitySet(f.table(), f, name, 1)
	clients, err := tx.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("clients in %s: %w", name, err)
	}
	var gone []nftables.SetElement
	for _, c := range clients {
		if !left[string(c.Val)] {
			gone = append(gone, nftables.SetElement{Key: c.Key, Val: c.Val})
		}
	}
	if len(gone) == 0 {
		return nil
	}
	// One that has timed out since it was read is added before it is deleted, as the deletion would fail otherwise.
	tx.AddElements(set, gone)
	tx.DeleteElements(set, gone)
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("clients in %s: %w", name, err)
	}
	return nil
}
