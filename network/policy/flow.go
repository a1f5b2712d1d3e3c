package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// judge evaluates rules for flows, as the kernel does for the first packets of connections. The ruleset must not change
// while a judge is in use.
type judge struct {
	*Ruleset
	sorted map[string][]Element // sorted elements of sets of Blocks and Ports, computed on first use
	steps  int                  // number of evaluated rules
}

func newJudge(r *Ruleset) *judge { return &judge{Ruleset: r, sorted: map[string][]Element{}} }

// allows evaluates the base chains for a flow.
func (j *judge) allows(f Flow) bool {
	for _, h := range Hooks {
		if h.Input != f.ToServer {
			continue
		}
		if verdict, final := j.run(h.Chain, f, 0); final && verdict == Drop {
			return false
		}
	}
	return true
}

// run returns a chain's verdict. final is false if the chain has none.
func (j *judge) run(chain string, f Flow, depth int) (v Verdict, final bool) {
	const deepest = 15 // as in the kernel
	rules, ok := j.Chains[chain]
	if !ok || depth > deepest {
		return Drop, true
	}
	for i := range rules {
		rule := &rules[i]
		j.steps++
		if !j.matches(rule, f) {
			continue
		}
		switch {
		case rule.BySource != "" || rule.ByDestination != "":
			name, address := rule.BySource, f.Source
			if rule.ByDestination != "" {
				name, address = rule.ByDestination, f.Destination
			}
			if chain, ok := j.Sets[name].Elements[Element{First: address}]; ok {
				return j.run(chain, f, depth)
			}
		case rule.Verdict == Jump:
			if v, final := j.run(rule.Chain, f, depth+1); final {
				return v, true
			}
		default:
			return rule.Verdict, true
		}
	}
	return Accept, false
}

func (j *judge) matches(rule *Rule, f Flow) bool {
	if rule.Established || rule.Midstream {
		return false
	}
	if rule.Source != "" && !j.holds(rule.Source, f.Source) ||
		rule.Destination != "" && !j.holds(rule.Destination, f.Destination) {
		return false
	}
	if rule.Selves != "" {
		if _, in := j.Sets[rule.Selves].Elements[Element{First: f.Source}]; !in || f.Source != f.Destination {
			return false
		}
	}
	if rule.Protocol != "" && rule.Protocol != f.Protocol {
		return false
	}
	if rule.Ports != (PortRange{}) && (f.Port < rule.Ports.First || f.Port > rule.Ports.Last) {
		return false
	}
	if rule.PortSet != "" && !j.holdsPort(rule.PortSet, f.Port) {
		return false
	}
	if rule.Endpoints != "" {
		if _, in := j.Sets[rule.Endpoints].Elements[Element{First: f.Destination, Port: f.Port}]; !in {
			return false
		}
	}
	return true
}

func (j *judge) holds(name string, a netip.Addr) bool {
	s := j.Sets[name]
	if a.Is4() == s.V6 {
		return false
	}
	if s.Kind == Addresses {
		_, in := s.Elements[Element{First: a}]
		return in
	}
	all := j.intervals(s)
	i, found := slices.BinarySearchFunc(all, a, func(e Element, a netip.Addr) int { return e.First.Compare(a) })
	return found || i > 0 && !all[i-1].Last.Less(a)
}

func (j *judge) holdsPort(name string, p uint16) bool {
	all := j.intervals(j.Sets[name])
	i, found := slices.BinarySearchFunc(all, p, func(e Element, p uint16) int { return cmp.Compare(e.Port, p) })
	return found || i > 0 && all[i-1].LastPort >= p
}

// intervals returns the sorted elements of a set. They do not overlap.
func (j *judge) intervals(s *Set) []Element {
	all, ok := j.sorted[s.Name]
	if !ok {
		for e := range s.Elements {
			all = append(all, e)
		}
		slices.SortFunc(all, func(a, b Element) int {
			return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Port, b.Port))
		})
		j.sorted[s.Name] = all
	}
	return all
}
