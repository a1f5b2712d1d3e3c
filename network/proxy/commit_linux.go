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

// table is that of one family in the kernel, and what it is to have. It is not safe for concurrent use.
type table struct {
	family family
	kernel *nft.Conn
	state  *state
	policy policy
	// known reports that the kernel has what state has, except for what is dirty.
	known bool
}

// openTable opens a table in a network namespace. It changes nothing before the first commit.
func openTable(f family, namespace *os.File) (*table, error) {
	kernel, err := nft.Open(namespace)
	if err != nil {
		return nil, fmt.Errorf("table %s of %s: %w", tableName, f, err)
	}
	return &table{family: f, kernel: kernel, state: newState()}, nil
}

// close leaves the table in the kernel as it is.
func (t *table) close() { t.kernel.Close() }

func (f family) table() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: f.tableFamily()}
}

// commit has the kernel make all changes since the last commit, as one transaction. If the kernel's table is not known,
// it is read, and the transaction makes it what it is to be; packets see the one or the other.
func (t *table) commit() error {
	w := &writing{table: t, in: t.family.table()}
	if !t.known {
		if err := w.prepare(); err != nil {
			return fmt.Errorf("table %s of %s: %w", tableName, t.family, err)
		}
	}
	if !t.known || len(t.state.dirty.elements)+len(t.state.dirty.chains)+len(t.state.dirty.sets) > 0 {
		err := w.begin()
		if err == nil {
			w.changes()
			err = w.tx.Commit()
		}
		if err != nil {
			t.known = false
			return fmt.Errorf("table %s of %s: %w", tableName, t.family, err)
		}
	}
	t.known = true
	t.state.clean()
	return nil
}

// writing is a commit under way.
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

// prepare finds out what the kernel has.
func (w *writing) prepare() error {
	w.whole = true
	if err := w.begin(); err != nil {
		return err
	}
	tables, err := w.tx.ListTablesOfFamily(w.in.Family)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	kernel := before{map[element]*string{}, map[string]*chain{}, map[string]bool{}}
	if slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName }) {
		if w.remake, err = w.read(&kernel); err != nil {
			return err
		}
	}
	w.state.since(kernel)
	return nil
}

// read reads the kernel's table, unless it has another layout.
func (w *writing) read(into *before) (otherLayout bool, err error) {
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
		return fmt.Errorf("elements of %s: %w", s.name(), err)
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

// verdictOf is the value of an element of a verdict map.
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

// changes are in an order in which nothing refers to what is not there: sets and chains, their rules, elements;
// then the same backwards.
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

// addSet adds a set that a single Service has.
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

// elements deletes and adds those that changed; one with another value is both.
func (w *writing) elements() {
	var gone, come [sets][]nftables.SetElement
	for e, was := range w.state.dirty.elements {
		now, wanted := w.state.elements[e]
		if was != nil && wanted && *was == now.value {
			continue
		}
		if was != nil {
			gone[e.of] = append(gone[e.of], e.kernel(*was))
		}
		if wanted {
			come[e.of] = append(come[e.of], e.kernel(now.value))
		}
	}
	for s := range sets {
		w.tx.DeleteElements(s.kernelSet(w.in, w.family), gone[s])
	}
	for s := range sets {
		w.tx.AddElements(s.kernelSet(w.in, w.family), come[s])
	}
}

func (e element) kernel(value string) nftables.SetElement {
	k := nftables.SetElement{Key: []byte(e.key)}
	switch {
	case e.of.verdicts():
		k.VerdictData = kernelVerdict(value)
	case value != "":
		k.Val = []byte(value)
	}
	return k
}

// deleteChains empties chains before it deletes them, since they refer to each other.
func (w *writing) deleteChains() {
	var gone []*nftables.Chain
	for name, was := range w.state.dirty.chains {
		if was != nil && w.state.chains[name] == nil {
			gone = append(gone, &nftables.Chain{Table: w.in, Name: name})
		}
	}
	for _, c := range gone {
		w.tx.FlushChain(c)
	}
	for _, c := range gone {
		w.tx.DelChain(c)
	}
}

// Cleanup removes the proxy's tables from a network namespace; nil is that of the process. Connections that it
// translated stay.
func Cleanup(namespace *os.File) error {
	var failed error
	for f := range families {
		failed = errors.Join(failed, nft.DeleteTable(namespace, f.table()))
	}
	return failed
}
