package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// rules are one Service's part of a table: elements with their values, which are empty in sets, chains, and maps of
// session affinity.
type rules struct {
	elements  map[element]string
	chains    map[string]chain
	affinity  map[string][]netip.AddrPort // maps of session affinity with their possible endpoints
	sources   map[string][]netip.Prefix   // immutable content of sets of sources
	rank      map[element]rank            // of elements that others may claim; others have rank 0
	forwarded *rules                      // addresses that the machine forwards, or nil
}

// rank decides between Services that claim the same address and port. A cluster IP belongs to its Service, whatever
// external addresses others list. A load balancer's address comes before external IPs, which any user may list.
type rank uint8

const (
	rankExternalIP rank = iota + 1
	rankBalancer
	rankOwn
)

// claim is a Service's claim to an element.
type claim struct {
	value string
	rank  rank
	owner *owner
}

// owner identifies a Service with claims. Among claims of the same rank the older Service's counts, so that no new
// Service takes traffic away from an existing one.
type owner struct {
	created int64
	name    string
}

// before compares claims; the first one counts. The order does not depend on the order of arrival.
func (c claim) before(d claim) int {
	return cmp.Or(-cmp.Compare(c.rank, d.rank), cmp.Compare(c.owner.created, d.owner.created),
		cmp.Compare(c.owner.name, d.owner.name))
}

// state is the target state of a table, and its changes since the last commit.
type state struct {
	elements map[element]claim
	others   map[element][]claim // all claims of elements with several, in order
	chains   map[string]*used
	idle     int                       // number of chains without users, kept for a while
	sets     map[string]int            // use counts of the sets and maps of single Services
	sources  map[string][]netip.Prefix // the content of sets of sources

	dirty snapshot
}

// used is a chain with its number of users.
type used struct {
	chain
	users int
}

// snapshot is the kernel's state of changed objects. Values are nil or false for missing ones.
type snapshot struct {
	elements map[element]*string
	chains   map[string]*chain
	sets     map[string]bool
}

func newState() *state {
	s := &state{elements: map[element]claim{}, others: map[element][]claim{}, chains: map[string]*used{},
		sets: map[string]int{}, sources: map[string][]netip.Prefix{}}
	s.clean()
	return s
}

// clean resets the changes, after the kernel has them.
func (s *state) clean() {
	s.dirty = snapshot{map[element]*string{}, map[string]*chain{}, map[string]bool{}}
}

// replace replaces a Service's rules. Either may be nil.
func (s *state) replace(owner *owner, old, new *rules) {
	if old == nil {
		old = &rules{}
	}
	if new == nil {
		new = &rules{}
	}
	// Acquire chains and sets before releasing old ones, so that those in both are not touched.
	for name, c := range new.chains {
		s.useChain(name, c)
	}
	for name := range new.affinity {
		s.useSet(name, 1)
	}
	for name, ranges := range new.sources {
		s.sources[name] = ranges
		s.useSet(name, 1)
	}
	for e, value := range old.elements {
		if now, stays := new.elements[e]; !stays || now != value || new.rank[e] != old.rank[e] {
			s.release(e, owner)
		}
	}
	for e, value := range new.elements {
		if was, existed := old.elements[e]; !existed || was != value || new.rank[e] != old.rank[e] {
			s.claim(e, claim{value, new.rank[e], owner})
		}
	}
	for name := range old.chains {
		s.releaseChain(name)
	}
	for name := range old.affinity {
		s.useSet(name, -1)
	}
	for name := range old.sources {
		s.useSet(name, -1)
	}
}

// succeed replaces the rules of a Service with its successor's. If the Service was recreated with the same name, its
// claims are younger.
func (s *state) succeed(before, now *owner, old, new *rules) {
	if *before != *now {
		s.replace(before, old, nil)
		old = nil
	}
	s.replace(now, old, new)
}

func (s *state) claim(e element, c claim) {
	now, exists := s.elements[e]
	if !exists {
		s.setElement(e, &c)
		return
	}
	all := s.others[e]
	if all == nil {
		all = []claim{now}
	}
	index, _ := slices.BinarySearchFunc(all, c, claim.before)
	all = slices.Insert(all, index, c)
	s.others[e] = all
	s.setElement(e, &all[0])
}

// release removes an owner's claim. Owners are compared by name, since the owner may have been recreated.
func (s *state) release(e element, owner *owner) {
	all := s.others[e]
	if all == nil {
		s.setElement(e, nil)
		return
	}
	all = slices.DeleteFunc(all, func(c claim) bool { return c.owner.name == owner.name })
	s.others[e] = all
	if len(all) == 1 {
		delete(s.others, e)
	}
	s.setElement(e, &all[0])
}

// setElement makes a claim the effective one; nil deletes the element.
func (s *state) setElement(e element, c *claim) {
	was, existed := s.elements[e]
	if _, seen := s.dirty.elements[e]; !seen && (c == nil || !existed || was.value != c.value) {
		s.dirty.elements[e] = nil
		if existed {
			s.dirty.elements[e] = &was.value
		}
	}
	if c == nil {
		delete(s.elements, e)
		return
	}
	s.elements[e] = *c
}

func (s *state) touchChain(name string) {
	if _, seen := s.dirty.chains[name]; seen {
		return
	}
	s.dirty.chains[name] = nil
	if u := s.chains[name]; u != nil {
		was := u.chain
		s.dirty.chains[name] = &was
	}
}

// maxIdle limits the chains that are kept without users.
const maxIdle = 100

func (s *state) useChain(name string, c chain) {
	u := s.chains[name]
	if u != nil && u.users == 0 {
		s.idle--
	}
	if u == nil {
		s.touchChain(name)
		u = &used{chain: c}
		s.chains[name] = u
	}
	if u.chain != c {
		s.touchChain(name)
		u.chain = c
	}
	u.users++
}

// releaseChain deletes a chain without users. A chain that Services may share is kept until the next full sync: for
// each added or deleted chain, the kernel checks all elements of the verdict maps.
func (s *state) releaseChain(name string) {
	u := s.chains[name]
	if u.users--; u.users > 0 {
		return
	}
	if u.shared() && s.idle < maxIdle {
		s.idle++
		return
	}
	s.touchChain(name)
	delete(s.chains, name)
}

func (s *state) useSet(name string, n int) {
	if _, seen := s.dirty.sets[name]; !seen {
		s.dirty.sets[name] = s.sets[name] > 0
	}
	if s.sets[name] += n; s.sets[name] == 0 {
		delete(s.sets, name)
		delete(s.sources, name)
	}
}

// since marks all differences between the state and the kernel as changes. It rewrites all chains, because their
// content in the kernel is unknown, and drops chains without users.
func (s *state) since(kernel snapshot) {
	s.clean()
	maps.DeleteFunc(s.chains, func(_ string, u *used) bool { return u.users == 0 })
	s.idle = 0
	for e, c := range s.elements {
		if has := kernel.elements[e]; has == nil || *has != c.value {
			s.dirty.elements[e] = has
		}
	}
	for e, has := range kernel.elements {
		if _, exists := s.elements[e]; !exists {
			s.dirty.elements[e] = has
		}
	}
	for name := range s.chains {
		s.dirty.chains[name] = kernel.chains[name]
	}
	for name, has := range kernel.chains {
		s.dirty.chains[name] = has
	}
	for name := range s.sets {
		s.dirty.sets[name] = kernel.sets[name]
	}
	maps.Copy(s.dirty.sets, kernel.sets)
}
