package authz

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// all matches every verb, group, resource or path.
const all = "*"

// rules are the rules of one role, indexed so that a decision checks only the few that name the request's resource.
type rules struct {
	list []rbacv1.PolicyRule
	// byTarget has the rules that name a group and a resource, and byResource the rules for all groups. wide has
	// the rules for all resources or for one subresource of all, and rules that are too long to index.
	byTarget   map[target][]*grant
	byResource map[string][]*grant
	targets    int // entries in the two maps
	wide       []*grant
	paths      []*grant
}

// target is a group and a resource, or "resource/subresource".
type target struct{ group, resource string }

// grant is the part of a rule that is checked if its target matches.
type grant struct {
	*rbacv1.PolicyRule
	verbs verbs
}

// verbs is a set of verbs: a bit for each of the usual ones, and the rest by name.
type verbs struct {
	usual uint16
	other []string
}

const everyVerb = 1 << 15

func verbBit(verb string) uint16 {
	switch verb {
	case "get":
		return 1
	case "list":
		return 1 << 1
	case "watch":
		return 1 << 2
	case "create":
		return 1 << 3
	case "update":
		return 1 << 4
	case "patch":
		return 1 << 5
	case "delete":
		return 1 << 6
	case "deletecollection":
		return 1 << 7
	case all:
		return everyVerb
	}
	return 0
}

func verbsOf(names []string) verbs {
	var v verbs
	for _, name := range names {
		if bit := verbBit(name); bit != 0 {
			v.usual |= bit
		} else {
			v.other = append(v.other, name)
		}
	}
	return v
}

func (v *verbs) has(bit uint16, verb string) bool {
	return v.usual&(bit|everyVerb) != 0 || bit == 0 && slices.Contains(v.other, verb)
}

// arrange indexes the rules of a list. The list must not be changed afterwards.
func arrange(list []rbacv1.PolicyRule) *rules {
	r := &rules{list: list}
	for i := range list {
		g := &grant{PolicyRule: &list[i], verbs: verbsOf(list[i].Verbs)}
		if len(g.NonResourceURLs) > 0 {
			r.paths = append(r.paths, g)
		}
		if len(g.APIGroups) > 0 && len(g.Resources) > 0 {
			r.place(g)
		}
	}
	return r
}

// maxTargets limits the indexed combinations of a group and a resource of one role. Rules beyond the limit are
// checked one by one.
const maxTargets = 8192

func (r *rules) place(g *grant) {
	anyGroup := slices.Contains(g.APIGroups, all)
	targets := len(g.APIGroups) * len(g.Resources)
	if r.targets+targets > maxTargets || slices.ContainsFunc(g.Resources, func(s string) bool {
		return s == all || strings.HasPrefix(s, "*/")
	}) {
		r.wide = append(r.wide, g)
		return
	}
	r.targets += targets
	for _, resource := range g.Resources {
		if anyGroup {
			if r.byResource == nil {
				r.byResource = map[string][]*grant{}
			}
			r.byResource[resource] = append(r.byResource[resource], g)
			continue
		}
		for _, group := range g.APIGroups {
			if r.byTarget == nil {
				r.byTarget = map[target][]*grant{}
			}
			t := target{group, resource}
			r.byTarget[t] = append(r.byTarget[t], g)
		}
	}
}

// query is a request in the form that lookups need.
type query struct {
	*Attributes
	target target
	bit    uint16
}

func newQuery(a *Attributes) query {
	q := query{Attributes: a, target: target{a.Group, a.Resource}, bit: verbBit(a.Verb)}
	if a.Subresource != "" {
		q.target.resource += "/" + a.Subresource
	}
	return q
}

// allow reports whether one of the rules allows the request.
func (r *rules) allow(q *query) bool {
	if q.Path != "" {
		for _, g := range r.paths {
			if g.verbs.has(q.bit, q.Verb) && slices.ContainsFunc(g.NonResourceURLs, func(p string) bool {
				return pathFits(p, q.Path)
			}) {
				return true
			}
		}
		return false
	}
	for _, g := range r.byTarget[q.target] {
		if g.fits(q) {
			return true
		}
	}
	if len(r.byResource) > 0 {
		for _, g := range r.byResource[q.target.resource] {
			if g.fits(q) {
				return true
			}
		}
	}
	for _, g := range r.wide {
		if (slices.Contains(g.APIGroups, all) || slices.Contains(g.APIGroups, q.Group)) && g.reaches(q) && g.fits(q) {
			return true
		}
	}
	return false
}

// fits reports whether the grant allows a request that matches its target.
func (g *grant) fits(q *query) bool {
	return g.verbs.has(q.bit, q.Verb) && (len(g.ResourceNames) == 0 || slices.Contains(g.ResourceNames, q.Name))
}

// reaches reports whether the resources of a wide rule include the request's.
func (g *grant) reaches(q *query) bool {
	for _, resource := range g.Resources {
		if resource == all || resource == q.target.resource {
			return true
		}
		if sub, ok := strings.CutPrefix(resource, "*/"); ok && q.Subresource != "" && sub == q.Subresource {
			return true
		}
	}
	return false
}

// pathFits reports whether a path matches a pattern, which may end in "*".
func pathFits(pattern, path string) bool {
	if pattern == path {
		return true
	}
	prefix, ok := strings.CutSuffix(pattern, all)
	return ok && strings.HasPrefix(path, prefix)
}
