package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Ruleset is the target state of the kernel: the sets and chains of one table, as data. Its base chains are Hooks.
type Ruleset struct {
	Sets   map[string]*Set
	Chains map[string][]Rule
}

// Hook is the position of a base chain. A packet that one base chain accepts continues to the next one.
type Hook struct {
	Chain    string
	Input    bool // sees packets to the namespace itself; otherwise forwarded ones
	Priority int  // relative to the priority filter
}

// Hooks are the base chains. Egress and ingress are separate, so that a verdict of one direction does not skip the
// other.
var Hooks = []Hook{
	{Chain: "egress", Priority: 0},
	{Chain: "ingress", Priority: 1},
	{Chain: "served", Input: true},
}

// Kind is the kind of a set's elements.
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

// Element is a key of a set. The set's kind determines the fields in use; the others are zero.
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
	Elements map[Element]string // values are empty, except for Verdicts

	before map[Element]former // the kernel's state of elements that changed since the last commit
}

// former is an element's state in the kernel.
type former struct {
	existed bool
	value   string
}

// Verdict is the result of a rule that matches.
type Verdict int

// The verdicts.
const (
	Accept Verdict = iota
	Drop
	Jump // to Rule.Chain, returning if that has no verdict
)

// PortRange includes both ends. The zero value matches every port; no real packet has port 0.
type PortRange struct{ First, Last uint16 }

// Rule matches packets that meet the conditions of all its fields. A zero field is no condition.
type Rule struct {
	Established         bool   // of an accepted connection, or an error about one
	Midstream           bool   // of an unknown TCP connection, and not its first packet
	Source, Destination string // sets of Addresses or Blocks
	Selves              string // a set of Selves
	Protocol            corev1.Protocol
	Ports               PortRange
	PortSet             string // a set of Ports
	Endpoints           string // a set of Endpoints

	// BySource and ByDestination are maps of Verdicts. They replace Verdict.
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

// directions are both directions, in order.
var directions = [...]Direction{Ingress, Egress}

// String returns the prefix of the names of the direction's chains and maps.
func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

// families are the suffixes of a pair of sets: IPv4's, then IPv6's.
var families = [2]string{"4", "6"}

// newRuleset returns the ruleset without policies.
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
	midstream := Rule{Midstream: true, Verdict: Drop} // otherwise either side could resume an ended connection
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

// set adds an element, or changes its value.
func (s *Set) set(e Element, value string) {
	if now, exists := s.Elements[e]; !exists || now != value {
		s.remember(e)
		s.Elements[e] = value
	}
}

// drop removes an element, if it exists.
func (s *Set) drop(e Element) {
	if _, exists := s.Elements[e]; exists {
		s.remember(e)
		delete(s.Elements, e)
	}
}

// remember records the kernel's state of an element before its first change since the last commit.
func (s *Set) remember(e Element) {
	if _, ok := s.before[e]; ok {
		return
	}
	if s.before == nil {
		s.before = map[Element]former{}
	}
	value, exists := s.Elements[e]
	s.before[e] = former{exists, value}
}

// ofFamily returns the set of a pair for an address's family.
func ofFamily(pair [2]*Set, a netip.Addr) *Set {
	if a.Is4() {
		return pair[0]
	}
	return pair[1]
}

// family returns the suffix of the names of sets for an address.
func family(a netip.Addr) string {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}
