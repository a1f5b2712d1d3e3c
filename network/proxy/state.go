package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// rules are what a table has for one Service: elements with their values, which are empty in sets, chains, and the sets
// that remember clients.
type rules struct {
	elements  map[element]string
	chains    map[string]chain
	affinity  map[string][]netip.AddrPort // with the endpoints that clients may be remembered with
	sources   map[string][]netip.Prefix   // the content of sets of sources, which never changes
	rank      map[element]rank            // of elements that others may claim; the others have rank 0
	forwarded *rules                      // what the machine passes on; nil for nothing
}

// rank decides between Services that claim the same address and port: that of a cluster IP is its Service's, whatever
// external addresses others list, and that of a load balancer goes before external IPs, which any user may list.
type rank uint8

const (
	rankExternalIP rank = iota + 1
	rankBalancer
	rankOwn
)

// claim is a Service's for an element.
type claim struct {
	value string
	rank  rank
	by    *owner
}

// owner is a Service as one that has claims. Between claims of one rank the older Service's counts, so that no new
// Service takes traffic away from one that is there.
type owner struct {
	created int64
	name    string
}

// before orders claims, the one that counts first. It does not depend on the order in which they came.
func (c claim) before(d claim) int {
	return cmp.Or(-cmp.Compare(c.rank, d.rank), cmp.Compare(c.by.created, d.by.created),
		cmp.Compare(c.by.name, d.by.name))
}

// state is what a table is to have, and what changed about it since the kernel was last told.
type state struct {
	elements map[element]claim
	others   map[element][]claim // all claims of elements with more than one, in order
	chains   map[string]*used
	idle     int                       // chains without users, which are kept for a while
	sets     map[string]int            // how often the sets and maps that single Services have are used
	sources  map[string][]netip.Prefix // the content of those that are of sources

	dirty before
}

// used is a chain with the number of its users.
type used struct {
	chain
	users int
}

// before is what the kernel has of all that changed: nil or false for what is not there.
type before struct {
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

// clean forgets what changed: the kernel has it.
func (s *state) clean() {
	s.dirty = before{map[element]*string{}, map[string]*chain{}, map[string]bool{}}
}

// replace puts a Service's new rules in the place of its old ones. Either may be nil.
func (s *state) replace(by *owner, old, new *rules) {
	if old == nil {
		old = &rules{}
	}
	if new == nil {
		new = &rules{}
	}
	// Chains and sets are taken before they are let go of, so that one that stays is not touched.
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
			s.release(e, by)
		}
	}
	for e, value := range new.elements {
		if was, there := old.elements[e]; !there || was != value || new.rank[e] != old.rank[e] {
			s.claim(e, claim{value, new.rank[e], by})
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

// succeed replaces the rules of a Service with those of its successor. A new Service of the same name has younger
// claims.
func (s *state) succeed(before, now *owner, old, new *rules) {
	if *before != *now {
		s.replace(before, old, nil)
		old = nil
	}
	s.replace(now, old, new)
}

func (s *state) claim(e element, c claim) {
	now, there := s.elements[e]
	if !there {
		s.setElement(e, &c)
		return
	}
	all := s.others[e]
	if all == nil {
		all = []claim{now}
	}
	at, _ := slices.BinarySearchFunc(all, c, claim.before)
	all = slices.Insert(all, at, c)
	s.others[e] = all
	s.setElement(e, &all[0])
}

// release takes an owner's claim back. It may be of an owner that was read anew: names identify owners.
func (s *state) release(e element, by *owner) {
	all := s.others[e]
	if all == nil {
		s.setElement(e, nil)
		return
	}
	all = slices.DeleteFunc(all, func(c claim) bool { return c.by.name == by.name })
	s.others[e] = all
	if len(all) == 1 {
		delete(s.others, e)
	}
	s.setElement(e, &all[0])
}

// setElement makes a claim the one that counts; nil deletes the element.
func (s *state) setElement(e element, c *claim) {
	was, there := s.elements[e]
	if _, known := s.dirty.elements[e]; !known && (c == nil || !there || was.value != c.value) {
		s.dirty.elements[e] = nil
		if there {
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
	if _, known := s.dirty.chains[name]; known {
		return
	}
	s.dirty.chains[name] = nil
	if u := s.chains[name]; u != nil {
		was := u.chain
		s.dirty.chains[name] = &was
	}
}

// maxIdle bounds the chains that are kept without users.
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

// releaseChain deletes a chain without users. One that Services may share is kept until the table is next compared with
// the kernel's: for each chain that comes or goes, the kernel looks at all elements of the verdict maps.
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
	if _, known := s.dirty.sets[name]; !known {
		s.dirty.sets[name] = s.sets[name] > 0
	}
	if s.sets[name] += n; s.sets[name] == 0 {
		delete(s.sets, name)
		delete(s.sources, name)
	}
}

// since has as dirty all in which the state differs from what the kernel was found to have. Chains may have any
// content, so that all are written again. Those without users go.
func (s *state) since(kernel before) {
	s.clean()
	maps.DeleteFunc(s.chains, func(_ string, u *used) bool { return u.users == 0 })
	s.idle = 0
	for e, c := range s.elements {
		if has := kernel.elements[e]; has == nil || *has != c.value {
			s.dirty.elements[e] = has
		}
	}
	for e, has := range kernel.elements {
		if _, wanted := s.elements[e]; !wanted {
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
