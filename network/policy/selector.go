package policy

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selector selects pods: of one namespace, or of those that another selector selects. Equal ones are one. Which pods it
// selects is kept up to date as long as a policy uses it: as its podSelector, or as a peer.
type selector struct {
	key      string
	pods     labels.Selector
	space    *bucket
	home     *namespace // nil where there is a scope
	scope    *scope     // nil for one namespace
	pair     pair       // labels that a pod must have to be selected; zero if there are none
	members  map[*pod]struct{}
	policies map[*policy]struct{} // whose podSelector it is
	peers    int                  // how many bodies of policies have it as a peer
	sets     [2]*Set              // of the members' addresses; nil where it is no peer
}

// pair is a label.
type pair struct{ key, value string }

// scope is a selector of namespaces.
type scope struct {
	bucket
	key        string
	selector   labels.Selector
	namespaces map[*namespace]struct{}
}

// bucket has selectors of the same namespaces, by a label that a pod must have where they say one, so that a pod is
// compared with those only that may select it.
type bucket struct {
	by map[pair]map[*selector]struct{}
}

// namespace has pods. One that pods or policies have, but that is not there (yet), is selected by no selector.
type namespace struct {
	bucket
	name     string
	labels   labels.Set
	there    bool
	pods     map[*pod]struct{}
	policies int
	scopes   map[*scope]struct{}
	budget   budget
}

func (b *bucket) add(s *selector) {
	if b.by == nil {
		b.by = map[pair]map[*selector]struct{}{}
	}
	if b.by[s.pair] == nil {
		b.by[s.pair] = map[*selector]struct{}{}
	}
	b.by[s.pair][s] = struct{}{}
}

func (b *bucket) remove(s *selector) {
	delete(b.by[s.pair], s)
	if len(b.by[s.pair]) == 0 {
		delete(b.by, s.pair)
	}
}

// matching calls f for the selectors that select a pod's labels.
func (b *bucket) matching(of labels.Set, f func(*selector)) {
	if len(b.by) == 0 {
		return
	}
	try := func(p pair) {
		for s := range b.by[p] {
			if s.pods.Matches(of) {
				f(s)
			}
		}
	}
	try(pair{})
	for key, value := range of {
		try(pair{key, value})
	}
}

// pairOf is a label without which a selector selects no pod. The lowest key is as good as any.
func pairOf(s *metav1.LabelSelector) (p pair) {
	if s == nil {
		return p
	}
	for key, value := range s.MatchLabels {
		if p.key == "" || key < p.key {
			p = pair{key, value}
		}
	}
	return p
}

// parse reads a label selector. One that is malformed, which the API server does not store, selects nothing.
func parse(s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// text is a selector's canonical form.
func text(s labels.Selector) string {
	if requirements, selectable := s.Requirements(); selectable {
		return labels.NewSelector().Add(requirements...).String()
	}
	return "!" // no selector of labels begins so and ends there
}

// acquire returns the selector of a namespace's policy, made if there is none yet. Where namespaces is nil it selects
// pods of that namespace; where pods is nil, all.
func (c *compiler) acquire(in *namespace, namespaces, pods *metav1.LabelSelector) *selector {
	if pods == nil {
		pods = &metav1.LabelSelector{}
	}
	parsed := parse(pods)
	key, over := in.name+": "+text(parsed), (*scope)(nil)
	if namespaces != nil {
		over = c.scopeOf(namespaces)
		key = "[" + over.key + "]: " + text(parsed)
	}
	if s := c.selectors[key]; s != nil {
		return s
	}
	s := &selector{key: key, pods: parsed, scope: over, space: &in.bucket, pair: pairOf(pods),
		members: map[*pod]struct{}{}, policies: map[*policy]struct{}{}}
	spaces := map[*namespace]struct{}{in: {}}
	if over == nil {
		s.home = in
	} else {
		s.space, spaces = &over.bucket, over.namespaces
	}
	c.selectors[key] = s
	s.space.add(s)
	for n := range spaces {
		for p := range n.pods {
			if s.pods.Matches(labels.Set(p.Labels)) {
				c.join(s, p)
			}
		}
	}
	return s
}

func (c *compiler) scopeOf(namespaces *metav1.LabelSelector) *scope {
	parsed := parse(namespaces)
	key := text(parsed)
	if s := c.scopes[key]; s != nil {
		return s
	}
	s := &scope{key: key, selector: parsed, namespaces: map[*namespace]struct{}{}}
	c.scopes[key] = s
	for _, n := range c.namespaces {
		if n.there && s.selector.Matches(n.labels) {
			s.namespaces[n], n.scopes[s] = struct{}{}, struct{}{}
		}
	}
	return s
}

// join makes a pod a member of a selector, and leave ends that.
func (c *compiler) join(s *selector, p *pod) {
	s.members[p], p.in[s] = struct{}{}, struct{}{}
	for _, a := range p.owned {
		c.enter(s, a)
	}
	if len(s.policies) > 0 {
		c.regroup(p)
	}
}

func (c *compiler) leave(s *selector, p *pod) {
	delete(s.members, p)
	delete(p.in, s)
	for _, a := range p.owned {
		c.exit(s, a)
	}
	if len(s.policies) > 0 {
		c.regroup(p)
	}
}

// rescope follows a change of a namespace's labels, or of whether it is there.
func (c *compiler) rescope(n *namespace) {
	for _, s := range c.scopes {
		_, was := s.namespaces[n]
		is := n.there && s.selector.Matches(n.labels)
		switch {
		case is && !was:
			s.namespaces[n], n.scopes[s] = struct{}{}, struct{}{}
			for p := range n.pods {
				s.matching(p.Labels, func(of *selector) { c.join(of, p) })
			}
		case was && !is:
			delete(s.namespaces, n)
			delete(n.scopes, s)
			for p := range n.pods {
				for of := range maps.Clone(p.in) {
					if of.scope == s {
						c.leave(of, p)
					}
				}
			}
		}
	}
}

// collect drops the selectors that no policy uses.
func (c *compiler) collect() {
	for s := range c.idle {
		if len(s.policies) > 0 {
			c.dropSets(s)
			continue
		}
		if s.peers > 0 {
			continue
		}
		c.dropSets(s)
		for p := range s.members {
			delete(p.in, s)
		}
		s.space.remove(s)
		delete(c.selectors, s.key)
		if s.home != nil {
			c.forget(s.home)
		}
		if s.scope != nil && len(s.scope.by) == 0 {
			for n := range s.scope.namespaces {
				delete(n.scopes, s.scope)
			}
			delete(c.scopes, s.scope.key)
		}
	}
	clear(c.idle)
}

// dropSets deletes a selector's sets, if it is no policy's peer any more.
func (c *compiler) dropSets(s *selector) {
	if s.peers == 0 && s.sets[0] != nil {
		c.dropSet(s.sets[0])
		c.dropSet(s.sets[1])
		s.sets = [2]*Set{}
	}
}
