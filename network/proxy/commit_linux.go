package proxy

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// table is one family's table in the kernel, and its target state. It is not safe for concurrent use.
type table struct {
	family family
	kernel *nft.Conn
	state  *state
	policy policy
	// synced reports that the kernel has state, except for its dirty part.
	synced bool
}

// openTable opens a table in a network namespace. It has no effect before the first commit.
func openTable(f family, namespace *os.File) (*table, error) {
	kernel, err := nft.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("open table %s of %s: %w", tableName, f, err)
	}
	return &table{family: f, kernel: kernel, state: newState()}, nil
}

// close closes the connection. The table stays in the kernel.
func (t *table) close() { t.kernel.Close() }

func (f family) table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: f.tableFamily()}
}

// commit applies all changes since the last commit in one transaction. If the kernel's table may differ from state, it
// is read first, and the transaction makes it equal; packets see either the old or the new table.
func (t *table) commit() error {
	w := &writing{table: t, in: t.family.table()}
	if !t.synced {
		if err := w.prepare(); err != nil {
			return fmt.Errorf("read table %s of %s: %w", tableName, t.family, err)
		}
	}
	if !t.synced || len(t.state.dirty.elements)+len(t.state.dirty.chains)+len(t.state.dirty.sets) > 0 {
		err := w.begin()
		if err == nil {
			w.changes()
			err = w.tx.Commit()
		}
		if err != nil {
			t.synced = false
			return fmt.Errorf("write table %s of %s: %w", tableName, t.family, err)
		}
	}
	t.synced = true
	t.state.clean()
	return nil
}

// writing is a commit in progress.
type writing struct {
	*table
	in     *nftables.Table
	tx     *nft.Transaction
	remake bool // the kernel's table has another layout
	whole  bool // write the layout as well
}

func (w *writing) begin() (err error) {
	w.tx, err = w.kernel.Begin()
	return err
}

// prepare reads the kernel's state and computes all differences.
func (w *writing) prepare() error {
	w.whole = true
	if err := w.begin(); err != nil {
		return err
	}
	tables, err := w.tx.ListTablesOfFamily(w.in.Family)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	kernel := snapshot{map[element]*string{}, map[string]*chain{}, map[string]bool{}}
	if slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName }) {
		if w.remake, err = w.read(&kernel); err != nil {
			return err
		}
	}
	w.state.since(kernel)
	return nil
}

// read reads the kernel's table, unless it has another layout.
func (w *writing) read(into *snapshot) (otherLayout bool, err error) {
	all, err := w.tx.ListChainsOfTableFamily(w.in.Family)
	if err != nil {
		return false, fmt.Errorf("list chains: %w", err)
	}
	names := map[string]bool{}
	for _, c := range all {
		if c.Table.Name == tableName {
			names[c.Name] = true
		}
	}
	if !names[layout] {
		return true, nil
	}
	for name := range names {
		if !slices.ContainsFunc(chains, func(c fixed) bool { return c.name == name }) {
			into.chains[name] = &chain{}
		}
	}
	for s := range sets {
		if err := w.readSet(s, into.elements); err != nil {
			return false, err
		}
	}
	found, err := w.tx.GetSets(w.in)
	if err != nil {
		return false, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range found {
		if s.HasTimeout || s.Interval {
			into.sets[s.Name] = true
		}
	}
	return false, nil
}

func (w *writing) readSet(s set, into map[element]*string) error {
	found, err := w.tx.GetSetElements(s.kernelSet(w.in, w.family))
	if err != nil {
		return fmt.Errorf("list elements of %s: %w", s.name(), err)
	}
	for _, e := range found {
		value := string(e.Val)
		if s.verdicts() {
			value = verdictOf(e.Val)
		}
		into[element{s, string(e.Key)}] = &value
	}
	return nil
}

// verdictOf returns the value of an element of a verdict map.
func verdictOf(attributes []byte) string {
	d, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return ""
	}
	value := verdictDrop
	for d.Next() {
		if d.Type() == unix.NFTA_VERDICT_CHAIN {
			value = d.String()
		}
	}
	return value
}

// changes adds all changes to the transaction, in an order without references to missing objects: first sets and
// chains, then their rules, then elements. Deletions follow in reverse order.
func (w *writing) changes() {
	if w.whole {
		if w.remake {
			w.tx.DelTable(w.in)
		}
		w.tx.AddTable(w.in)
	}
	w.addSets()
	w.addChains()
	w.elements()
	w.deleteChains()
	for name, was := range w.state.dirty.sets {
		if was && w.state.sets[name] == 0 {
			w.tx.DelSet(&nftables.Set{Table: w.in, Name: name})
		}
	}
}

func (w *writing) addSets() {
	if w.whole {
		for s := range sets {
			w.tx.AddSet(s.kernelSet(w.in, w.family), nil)
		}
	}
	id := uint32(sets)
	for name, was := range w.state.dirty.sets {
		if !was && w.state.sets[name] > 0 {
			id++
			w.addSet(name, id)
		}
	}
}

// addSet adds a set of a single Service.
func (w *writing) addSet(name string, id uint32) {
	ranges, sources := w.state.sources[name]
	if !sources {
		w.tx.AddSet(affinitySet(w.in, w.family, name, id), nil)
		return
	}
	set := sourceSet(w.in, w.family, name, id)
	w.tx.AddSet(set, nil)
	w.tx.AddElements(set, intervals(ranges))
}

func (w *writing) addChains() {
	if w.whole {
		w.addLayout()
	}
	for name, was := range w.state.dirty.chains {
		if was == nil && w.state.chains[name] != nil {
			w.tx.AddChain(&nftables.Chain{Table: w.in, Name: name})
		}
	}
	for name, was := range w.state.dirty.chains {
		switch now := w.state.chains[name]; {
		case now == nil, was != nil && *was == now.chain:
		case was != nil:
			w.tx.FlushChain(&nftables.Chain{Table: w.in, Name: name})
			fallthrough
		default:
			w.addRules(name, now.rules(w.family, &w.policy))
		}
	}
}

func (w *writing) addLayout() {
	for _, c := range chains {
		k := &nftables.Chain{Table: w.in, Name: c.name}
		if c.kind != "" {
			k.Type, k.Hooknum = c.kind, c.hook
			k.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.priority))
		}
		w.tx.AddChain(k)
		w.tx.FlushChain(k)
	}
	for _, c := range chains {
		if c.rules != nil {
			w.addRules(c.name, c.rules(w.family, &w.policy))
		}
	}
}

func (w *writing) addRules(chain string, rules []*rule) {
	c := &nftables.Chain{Table: w.in, Name: chain}
	for _, r := range rules {
		w.tx.AddRule(&nftables.Rule{Table: w.in, Chain: c, Exprs: r.list})
	}
}

// elements deletes and adds changed elements. An element with a new value is deleted and added.
func (w *writing) elements() {
	var removed, added [sets][]nftables.SetElement
	for e, was := range w.state.dirty.elements {
		now, exists := w.state.elements[e]
		if was != nil && exists && *was == now.value {
			continue
		}
		if was != nil {
			removed[e.set] = append(removed[e.set], e.kernel(*was))
		}
		if exists {
			added[e.set] = append(added[e.set], e.kernel(now.value))
		}
	}
	for s := range sets {
		w.tx.DeleteElements(s.kernelSet(w.in, w.family), removed[s])
	}
	for s := range sets {
		w.tx.AddElements(s.kernelSet(w.in, w.family), added[s])
	}
}

func (e element) kernel(value string) nftables.SetElement {
	k := nftables.SetElement{Key: []byte(e.key)}
	switch {
	case e.set.verdicts():
		k.VerdictData = kernelVerdict(value)
	case value != "":
		k.Val = []byte(value)
	}
	return k
}

// deleteChains flushes all chains before it deletes them, because they refer to each other.
func (w *writing) deleteChains() {
	var removed []*nftables.Chain
	for name, was := range w.state.dirty.chains {
		if was != nil && w.state.chains[name] == nil {
			removed = append(removed, &nftables.Chain{Table: w.in, Name: name})
		}
	}
	for _, c := range removed {
		w.tx.FlushChain(c)
	}
	for _, c := range removed {
		w.tx.DelChain(c)
	}
}

// Cleanup removes the proxy's tables from a network namespace; nil stands for the process's. Translated connections
// continue.
func Cleanup(namespace *os.File) error {
	var failed error
	for f := range families {
		failed = errors.Join(failed, nft.DeleteTable(namespace, f.table()))
	}
	return failed
}
