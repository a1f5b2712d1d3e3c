package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Ruleset is what the kernel is to hold: the sets and chains of one table, as data. Its base chains are Hooks.
type Ruleset struct {
	Sets   map[string]*Set
	Chains map[string][]Rule
}

// Hook says where a base chain sees packets. A packet that a base chain accepts goes on to the next one.
type Hook struct {
	Chain    string
	Input    bool // packets to the namespace itself; those that it forwards otherwise
	Priority int  // relative to the priority filter
}

// Hooks are the base chains. Egress and ingress are apart, so that a verdict of one direction leaves the other its own.
var Hooks = []Hook{
	{Chain: "egress", Priority: 0},
	{Chain: "ingress", Priority: 1},
	{Chain: "served", Input: true},
}

// Kind is what the elements of a set are.
type Kind int

// The kinds of sets.
const (
	Addresses Kind = iota // Element.First
	Selves                // First, as the source and the destination of a packet at once
	Endpoints             // First and Port, as the destination of a packet
	Blocks                // addresses from First to Last
	Ports                 // ports from Port to LastPort
	Verdicts              // First; the value is the chain to go to
)

// Element is a key of a set: the fields that the set's kind names, the others being zero.
type Element struct {
	First, Last    netip.Addr
	Port, LastPort uint16
}

// Set is a named set or map of one address family.
type Set struct {
	Name     string
	Kind     Kind
	V6       bool
	Comment  string             // for people who list the table
	Elements map[Element]string // the values are empty but for Verdicts

	before map[Element]former // of the elements that have changed since the last commit
}

// former is an element's state in the kernel.
type former struct {
	there bool
	value string
}

// Verdict is what becomes of a packet that a rule matches.
type Verdict int

// The verdicts.
const (
	Accept Verdict = iota
	Drop
	Jump // to Rule.Chain, and back if that has no verdict
)

// PortRange has both its ends. The zero value is no restriction, and no packet has port 0 in earnest.
type PortRange struct{ First, Last uint16 }

// Rule matches packets of which all is true that its fields say; a zero field says nothing.
type Rule struct {
	Established         bool   // of a connection that was accepted, or an error about one
	Midstream           bool   // of a TCP connection that is not known, and does not begin
	Source, Destination string // sets of Addresses or Blocks
	Selves              string // a set of Selves
	Protocol            corev1.Protocol
	Ports               PortRange
	PortSet             string // a set of Ports
	Endpoints           string // a set of Endpoints

	// BySource and ByDestination are maps of Verdicts. They take the place of Verdict.
	BySource, ByDestination string

	Verdict Verdict
	Chain   string
}

// Direction of traffic, as seen from the selected pods.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// directions are both, in order.
var directions = [...]Direction{Ingress, Egress}

// String is the word that begins the names of the direction's chains and maps.
func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

// families end the names of a pair of sets: IPv4's, then IPv6's.
var families = [2]string{"4", "6"}

// newRuleset returns the ruleset of no policy.
func newRuleset() Ruleset {
	r := Ruleset{Sets: map[string]*Set{}, Chains: map[string][]Rule{}}
	for i, family := range families {
		v6 := i == 1
		r.add(&Set{Name: "node" + family, V6: v6, Comment: "addresses of this machine"})
		r.add(&Set{Name: "served" + family, V6: v6, Comment: "addresses of servers in this namespace"})
		r.add(&Set{Name: "selves" + family, V6: v6, Kind: Selves, Comment: "a pod always reaches itself"})
		for _, d := range directions {
			r.add(&Set{Name: d.String() + family, V6: v6, Kind: Verdicts, Comment: "isolated pods of this machine"})
		}
	}
	midstream := Rule{Midstream: true, Verdict: Drop} // else what has ended would be taken up, by either side
	r.Chains["egress"] = []Rule{{Established: true}, midstream, {Selves: "selves4"}, {Selves: "selves6"},
		{Destination: "node4"}, {Destination: "node6"}, {BySource: "egress4"}, {BySource: "egress6"}}
	r.Chains["ingress"] = []Rule{{Established: true}, {Selves: "selves4"}, {Selves: "selves6"},
		{Source: "node4"}, {Source: "node6"}, {ByDestination: "ingress4"}, {ByDestination: "ingress6"}}
	r.Chains["served"] = []Rule{{Established: true}, midstream,
		{Destination: "served4", BySource: "egress4"}, {Destination: "served6", BySource: "egress6"}}
	return r
}

func (r *Ruleset) add(s *Set) *Set {
	s.Elements = map[Element]string{}
	r.Sets[s.Name] = s
	return s
}

// set adds an element, or gives it another value.
func (s *Set) set(e Element, value string) {
	if now, there := s.Elements[e]; !there || now != value {
		s.remember(e)
		s.Elements[e] = value
	}
}

// drop removes an element, if it is there.
func (s *Set) drop(e Element) {
	if _, there := s.Elements[e]; there {
		s.remember(e)
		delete(s.Elements, e)
	}
}

func (s *Set) remember(e Element) {
	if _, known := s.before[e]; known {
		return
	}
	if s.before == nil {
		s.before = map[Element]former{}
	}
	value, there := s.Elements[e]
	s.before[e] = former{there, value}
}

// ofFamily returns the set of a pair that holds an address's family.
func ofFamily(pair [2]*Set, a netip.Addr) *Set {
	if a.Is4() {
		return pair[0]
	}
	return pair[1]
}

// family ends the names of the sets for an address.
func family(a netip.Addr) string {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}
