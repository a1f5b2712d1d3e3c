package audit

import (
	"slices"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// Policy decides how much of a request is recorded. It is immutable.
type Policy struct {
	rules []rule
	omit  stages // for requests that match no rule
}

// Decision determines how one request is recorded.
type Decision struct {
	Level             Level
	OmitManagedFields bool
	omit              stages
}

// set is a set of values that match; a nil set matches every value.
type set map[string]bool

func setOf(values []string) set {
	if len(values) == 0 {
		return nil
	}
	s := make(set, len(values))
	for _, v := range values {
		s[v] = true
	}
	return s
}

func (s set) matches(value string) bool { return s == nil || s[value] }

func (s set) matchesAny(values []string) bool {
	return s == nil || slices.ContainsFunc(values, func(v string) bool { return s[v] })
}

type rule struct {
	Decision
	users, groups, verbs, namespaces set
	resources                        []groupRule // empty matches all
	paths                            []string
}

// groupRule matches resources of one API group.
type groupRule struct {
	group     string
	resources []string // empty matches all
	names     set
}

func (p *policyFile) compile() (*Policy, error) {
	everywhere, err := stagesOf(p.OmitStages)
	if err != nil {
		return nil, err
	}
	compiled := &Policy{omit: everywhere}
	for i := range p.Rules {
		from := &p.Rules[i]
		omit, err := stagesOf(from.OmitStages)
		if err != nil {
			return nil, err
		}
		r := rule{
			Decision: Decision{Level: Level(slices.Index(levelNames, from.Level)), omit: everywhere | omit,
				OmitManagedFields: p.OmitManagedFields},
			users: setOf(from.Users), groups: setOf(from.UserGroups), verbs: setOf(from.Verbs),
			namespaces: setOf(from.Namespaces), paths: from.NonResourceURLs,
		}
		if from.OmitManagedFields != nil {
			r.OmitManagedFields = *from.OmitManagedFields
		}
		for _, g := range from.Resources {
			r.resources = append(r.resources, groupRule{g.Group, g.Resources, setOf(g.ResourceNames)})
		}
		compiled.rules = append(compiled.rules, r)
	}
	return compiled, nil
}

// Decide returns the decision of the first rule that matches the request. a.User is nil if the credential is
// invalid.
//
// Bodies that contain credentials are recorded only by a rule that names the resource. A rule for all resources, or
// for all of a group, records just their metadata. Kubernetes makes no such exception.
func (p *Policy) Decide(a *authz.Attributes) Decision {
	for i := range p.rules {
		r := &p.rules[i]
		if !r.matches(a) {
			continue
		}
		d := r.Decision
		if d.Level > LevelMetadata && Confidential(a.Group, a.Resource, a.Subresource) && !r.names(a) {
			d.Level = LevelMetadata
		}
		return d
	}
	return Decision{omit: p.omit}
}

// Confidential reports whether requests or responses for a resource contain credentials.
func Confidential(group, resource, subresource string) bool {
	switch group {
	case "":
		return resource == "secrets" || resource == "serviceaccounts" && subresource == "token"
	case "authentication.k8s.io":
		return resource == "tokenreviews"
	}
	return false
}

func (r *rule) matches(a *authz.Attributes) bool {
	if r.users != nil && (a.User == nil || !r.users[a.User.Name]) ||
		r.groups != nil && (a.User == nil || !r.groups.matchesAny(a.User.Groups)) || !r.verbs.matches(a.Verb) {
		return false
	}
	switch {
	case r.namespaces != nil || len(r.resources) > 0:
		return a.Path == "" && r.namespaces.matches(a.Namespace) && r.matchesResource(a)
	case len(r.paths) > 0:
		return a.Path != "" && slices.ContainsFunc(r.paths, func(spec string) bool { return pathMatches(a.Path, spec) })
	}
	return true
}

func pathMatches(path, spec string) bool {
	prefix, wild := strings.CutSuffix(spec, "*")
	return spec == path || wild && strings.HasPrefix(path, prefix)
}

func (r *rule) matchesResource(a *authz.Attributes) bool {
	if len(r.resources) == 0 {
		return true
	}
	for i := range r.resources {
		g := &r.resources[i]
		if g.group != a.Group {
			continue
		}
		if len(g.resources) == 0 {
			return true
		}
		if !g.names.matches(a.Name) {
			continue
		}
		for _, spec := range g.resources {
			if resourceMatches(a, spec) {
				return true
			}
		}
	}
	return false
}

// resourceMatches reports whether the attributes match a rule's resource, such as *, pods, pods/log, pods/* or
// */log. As in Kubernetes, pods/* includes pods.
func resourceMatches(a *authz.Attributes, spec string) bool {
	if spec == "*" {
		return true
	}
	resource, subresource, below := strings.Cut(spec, "/")
	switch {
	case !below:
		return resource == a.Resource && a.Subresource == ""
	case subresource == "*" && resource == a.Resource:
		return true
	case resource == "*":
		return a.Subresource != "" && subresource == a.Subresource
	}
	return resource == a.Resource && subresource == a.Subresource
}

// names reports whether the rule names the request's resource without a wildcard.
func (r *rule) names(a *authz.Attributes) bool {
	want := a.Resource
	if a.Subresource != "" {
		want += "/" + a.Subresource
	}
	return slices.ContainsFunc(r.resources, func(g groupRule) bool {
		return g.group == a.Group && g.names.matches(a.Name) && slices.Contains(g.resources, want)
	})
}
