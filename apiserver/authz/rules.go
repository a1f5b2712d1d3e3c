package authz

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// all stands for every verb, group, resource or path.
const all = "*"

// rules are those of one role, indexed so that a decision checks only the few that name the request's
// resource.
type rules struct {
	list []rbacv1.PolicyRule
	// byTarget are the rules that name a group and a resource; byResource those of all groups;
	// wide those of all resources, of one subresource of all, or of too many to index.
	byTarget   map[target][]*grant
	byResource map[string][]*grant
	targets    int // in the two
	wide       []*grant
	paths      []*grant
}

// target is a group and a resource, or "resource/subresource".
type target struct{ group, resource string }

// grant is the part of a rule that is checked once its target matches.
type grant struct {
	*rbacv1.PolicyRule
	verbs verbs
}

// verbs are a set: a bit for each of the usual ones, and the rest by name.
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

// arrange indexes the rules of a list, which must not be changed afterwards.
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

// maxTargets is how many combinations of a group and a resource are indexed of one role. Rules that would go beyond are
// looked at one by one.
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
			at := target{group, resource}
			r.byTarget[at] = append(r.byTarget[at], g)
		}
	}
}

// query is a request, prepared for many lookups.
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

// fits reports whether the grant allows a request whose target matches.
func (g *grant) fits(q *query) bool {
	return g.verbs.has(q.bit, q.Verb) && (len(g.ResourceNames) == 0 || slices.Contains(g.ResourceNames, q.Name))
}

// reaches reports whether a rule of many resources includes the request's.
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
