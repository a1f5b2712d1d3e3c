package policy

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selector selects pods of one namespace, or of the namespaces that a scope selects. Equal selectors share one object.
// Its members are kept up to date as long as a policy uses it, as its podSelector or as a peer.
type selector struct {
	key      string
	pods     labels.Selector
	space    *bucket
	home     *namespace // nil if there is a scope
	scope    *scope     // nil for one namespace
	pair     pair       // a label that a pod must have; zero if unknown
	members  map[*pod]struct{}
	policies map[*policy]struct{} // the policies with this podSelector
	peers    int                  // number of bodies with it as a peer
	sets     [2]*Set              // the members' addresses; nil unless it is a peer
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

// bucket indexes selectors of the same namespaces by a label that a pod must have, if they require one. A pod is
// compared only with selectors that may select it.
type bucket struct {
	index map[pair]map[*selector]struct{}
}

// namespace holds pods. It may exist only because pods or policies refer to it; then no selector selects it.
type namespace struct {
	bucket
	name     string
	labels   labels.Set
	exists   bool
	pods     map[*pod]struct{}
	policies int
	scopes   map[*scope]struct{}
	budget   budget
}

func (b *bucket) add(s *selector) {
	if b.index == nil {
		b.index = map[pair]map[*selector]struct{}{}
	}
	if b.index[s.pair] == nil {
		b.index[s.pair] = map[*selector]struct{}{}
	}
	b.index[s.pair][s] = struct{}{}
}

func (b *bucket) remove(s *selector) {
	delete(b.index[s.pair], s)
	if len(b.index[s.pair]) == 0 {
		delete(b.index, s.pair)
	}
}

// matching calls f for the selectors that select a pod with these labels.
func (b *bucket) matching(set labels.Set, f func(*selector)) {
	if len(b.index) == 0 {
		return
	}
	try := func(p pair) {
		for s := range b.index[p] {
			if s.pods.Matches(set) {
				f(s)
			}
		}
	}
	try(pair{})
	for key, value := range set {
		try(pair{key, value})
	}
}

// pairOf returns a label that every selected pod must have. If there are several, it takes the lowest key.
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

// parse converts a label selector. A malformed one, which the API server never stores, selects no pod.
func parse(s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// text returns a selector's canonical form.
func text(s labels.Selector) string {
	if requirements, selectable := s.Requirements(); selectable {
		return labels.NewSelector().Add(requirements...).String()
	}
	return "!" // not a prefix of any selector's text, so it is unique
}

// acquire returns the selector of a namespace's policy, and creates it if necessary. If namespaces is nil, it selects
// pods of that namespace. If pods is nil, it selects all pods.
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
		if n.exists && s.selector.Matches(n.labels) {
			s.namespaces[n], n.scopes[s] = struct{}{}, struct{}{}
		}
	}
	return s
}

// join makes a pod a member of a selector. leave reverts that.
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

// rescope updates scopes after a namespace's labels changed, or after it was created or deleted.
func (c *compiler) rescope(n *namespace) {
	for _, s := range c.scopes {
		_, was := s.namespaces[n]
		is := n.exists && s.selector.Matches(n.labels)
		switch {
		case is && !was:
			s.namespaces[n], n.scopes[s] = struct{}{}, struct{}{}
			for p := range n.pods {
				s.matching(p.Labels, func(member *selector) { c.join(member, p) })
			}
		case was && !is:
			delete(s.namespaces, n)
			delete(n.scopes, s)
			for p := range n.pods {
				for member := range maps.Clone(p.in) {
					if member.scope == s {
						c.leave(member, p)
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
		if s.scope != nil && len(s.scope.index) == 0 {
			for n := range s.scope.namespaces {
				delete(n.scopes, s.scope)
			}
			delete(c.scopes, s.scope.key)
		}
	}
	clear(c.idle)
}

// dropSets deletes a selector's sets, if no policy has it as a peer anymore.
func (c *compiler) dropSets(s *selector) {
	if s.peers == 0 && s.sets[0] != nil {
		c.dropSet(s.sets[0])
		c.dropSet(s.sets[1])
		s.sets = [2]*Set{}
	}
}
