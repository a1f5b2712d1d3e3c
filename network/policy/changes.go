package policy

// Changes are those from one state of a ruleset to the next: what a transaction has to do.
type Changes struct {
	NewSets   []*Set            // with all their elements
	Elements  []ElementChanges  // of sets that were there before
	Chains    map[string][]Rule // new chains, and those that have other rules
	OldChains []string          // which have gone
	OldSets   []string
}

// ElementChanges are those of one set. The deletions go first: an element of a map that has another value is in both.
type ElementChanges struct {
	Set        *Set
	Gone, Come []Element
}

// Empty reports whether there is nothing to do.
func (c *Changes) Empty() bool {
	return len(c.NewSets)+len(c.Elements)+len(c.Chains)+len(c.OldChains)+len(c.OldSets) == 0
}

// draft is a ruleset with a record of what has changed since it was last taken.
type draft struct {
	Ruleset
	sets, chains map[string]bool // those touched, and whether they were there before
	elements     map[string]*Set // sets with elements touched
}

func newDraft() draft {
	d := draft{Ruleset: newRuleset()}
	d.forget()
	return d
}

func (d *draft) forget() {
	for _, s := range d.elements {
		s.before = nil
	}
	d.sets, d.chains, d.elements = map[string]bool{}, map[string]bool{}, map[string]*Set{}
}

// touch notes the first change of a name.
func touch(touched map[string]bool, name string, there bool) {
	if _, known := touched[name]; !known {
		touched[name] = there
	}
}

func (d *draft) addSet(s *Set) *Set {
	touch(d.sets, s.Name, false)
	return d.add(s)
}

func (d *draft) dropSet(s *Set) {
	touch(d.sets, s.Name, true)
	delete(d.Sets, s.Name)
	delete(d.elements, s.Name)
}

func (d *draft) setElement(s *Set, e Element, value string) {
	s.set(e, value)
	d.elements[s.Name] = s
}

func (d *draft) dropElement(s *Set, e Element) {
	s.drop(e)
	d.elements[s.Name] = s
}

func (d *draft) setChain(name string, rules []Rule) {
	_, there := d.Chains[name]
	touch(d.chains, name, there)
	d.Chains[name] = rules
}

func (d *draft) dropChain(name string) {
	touch(d.chains, name, true)
	delete(d.Chains, name)
}

// take returns the changes since the last call, and forgets them.
func (d *draft) take() *Changes {
	c := &Changes{Chains: map[string][]Rule{}}
	for name, was := range d.sets {
		s, is := d.Sets[name]
		switch {
		case is && !was:
			c.NewSets = append(c.NewSets, s)
		case was && !is:
			c.OldSets = append(c.OldSets, name)
		}
	}
	for name, s := range d.elements {
		if was, touched := d.sets[name]; touched && !was {
			continue // new, with all its elements
		}
		if e := s.changes(); len(e.Gone)+len(e.Come) > 0 {
			c.Elements = append(c.Elements, e)
		}
	}
	for name, was := range d.chains {
		rules, is := d.Chains[name]
		switch {
		case is:
			c.Chains[name] = rules
		case was:
			c.OldChains = append(c.OldChains, name)
		}
	}
	d.forget()
	return c
}

func (s *Set) changes() ElementChanges {
	c := ElementChanges{Set: s}
	for e, was := range s.before {
		value, is := s.Elements[e]
		if is == was.there && value == was.value {
			continue
		}
		if was.there {
			c.Gone = append(c.Gone, e)
		}
		if is {
			c.Come = append(c.Come, e)
		}
	}
	return c
}
