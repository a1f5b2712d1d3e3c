package flowcontrol

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	flowv1 "k8s.io/api/flowcontrol/v1"
)

// configuration has the schemas that requests are classified by. It is immutable: each change makes another one.
//
// Policies are indexed by their subjects, so that a request is compared only with the policies for its user,
// even if there are many schemas.
type configuration struct {
	schemas  []*schema // in the order of matching
	catchAll *schema
	users    policies // by name; service accounts are users, too
	groups   policies
	accounts policies // by the namespace, of schemas for all service accounts in it
	everyone []*policy
}

// policies are in the order of matching.
type policies map[string][]*policy

// schema is a FlowSchema with an existing level.
type schema struct {
	name, uid, levelUID string
	level               *level
	// distinguish returns the flow of a request within the schema; nil if the schema has only one.
	distinguish func(*Request) string
	seed        uint64
	metrics     *schemaMetrics
}

// policy is one of a schema's rules. rank is the schema's place in the order of matching.
type policy struct {
	rank      int
	schema    *schema
	resources []flowv1.ResourcePolicyRule
	paths     []flowv1.NonResourcePolicyRule
}

// newConfiguration indexes the schemas, which are in the order of matching.
func newConfiguration(schemas []*schema, objects []*flowv1.FlowSchema) *configuration {
	c := &configuration{schemas: schemas, users: policies{}, groups: policies{}, accounts: policies{}}
	for rank, s := range schemas {
		if s.name == flowv1.FlowSchemaNameCatchAll {
			c.catchAll = s
		}
		rules := objects[rank].Spec.Rules
		for i := range rules {
			p := &policy{rank: rank, schema: s, resources: rules[i].ResourceRules, paths: rules[i].NonResourceRules}
			for k := range rules[i].Subjects {
				c.add(p, &rules[i].Subjects[k])
			}
		}
	}
	return c
}

func (c *configuration) add(p *policy, s *flowv1.Subject) {
	switch {
	case s.User != nil && s.User.Name == flowv1.NameAll, s.Group != nil && s.Group.Name == flowv1.NameAll:
		c.everyone = append(c.everyone, p)
	case s.User != nil:
		c.users[s.User.Name] = append(c.users[s.User.Name], p)
	case s.Group != nil:
		c.groups[s.Group.Name] = append(c.groups[s.Group.Name], p)
	case s.ServiceAccount != nil && s.ServiceAccount.Name == flowv1.NameAll:
		c.accounts[s.ServiceAccount.Namespace] = append(c.accounts[s.ServiceAccount.Namespace], p)
	case s.ServiceAccount != nil:
		name := accountPrefix + s.ServiceAccount.Namespace + ":" + s.ServiceAccount.Name
		c.users[name] = append(c.users[name], p)
	}
}

const accountPrefix = "system:serviceaccount:"

// classify returns the first schema that matches. If none matches, it returns catch-all, even if that has been
// edited to match less.
func (c *configuration) classify(r *Request) *schema {
	var best *policy
	best = first(c.everyone, r, best)
	best = first(c.users[r.User], r, best)
	for _, group := range r.Groups {
		best = first(c.groups[group], r, best)
	}
	if rest, ok := strings.CutPrefix(r.User, accountPrefix); ok && len(c.accounts) > 0 {
		namespace, _, _ := strings.Cut(rest, ":")
		best = first(c.accounts[namespace], r, best)
	}
	if best == nil {
		return c.catchAll
	}
	return best.schema
}

// first returns the first policy that matches, or best if that comes before.
func first(list []*policy, r *Request, best *policy) *policy {
	for _, p := range list {
		if best != nil && p.rank >= best.rank {
			break
		}
		if p.matches(r) {
			return p
		}
	}
	return best
}

func (p *policy) matches(r *Request) bool {
	if r.Path != "" {
		return slices.ContainsFunc(p.paths, func(rule flowv1.NonResourcePolicyRule) bool {
			return contains(rule.Verbs, r.Verb) && slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool {
				return onPath(url, r.Path)
			})
		})
	}
	for i := range p.resources {
		rule := &p.resources[i]
		if !contains(rule.Verbs, r.Verb) || !contains(rule.APIGroups, r.Group) ||
			!slices.ContainsFunc(rule.Resources, r.isOn) {
			continue
		}
		if r.Namespace == "" && rule.ClusterScope || r.Namespace != "" && contains(rule.Namespaces, r.Namespace) {
			return true
		}
	}
	return false
}

// isOn reports whether a rule's resource, pods or pods/status, is the request's.
func (r *Request) isOn(resource string) bool {
	if resource == flowv1.ResourceAll {
		return true
	}
	rest, ok := strings.CutPrefix(resource, r.Resource)
	if !ok || r.Subresource == "" {
		return ok && rest == ""
	}
	return len(rest) > 0 && rest[0] == '/' && rest[1:] == r.Subresource
}

// contains reports whether the list has the value, or means all values.
func contains(list []string, value string) bool {
	for _, each := range list {
		if each == value || each == "*" {
			return true
		}
	}
	return false
}

func onPath(url, path string) bool {
	if prefix, ok := strings.CutSuffix(url, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return url == path
}

// inOrder sorts schemas as they are matched.
func inOrder(schemas []*flowv1.FlowSchema) {
	slices.SortFunc(schemas, func(a, b *flowv1.FlowSchema) int {
		return cmp.Or(cmp.Compare(a.Spec.MatchingPrecedence, b.Spec.MatchingPrecedence),
			strings.Compare(a.Name, b.Name))
	})
}

// distinguisher returns the function that maps a schema's requests to flows.
func distinguisher(method *flowv1.FlowDistinguisherMethod) func(*Request) string {
	if method == nil {
		return nil
	}
	switch method.Type {
	case flowv1.FlowDistinguisherMethodByUserType:
		return func(r *Request) string { return r.User }
	case flowv1.FlowDistinguisherMethodByNamespaceType:
		return func(r *Request) string { return r.Namespace }
	}
	return nil
}

// seed differs in each process, so that users cannot choose names that share another user's queues.
var seed = maphash.MakeSeed()

// hash returns the number that determines a flow's hand of queues.
func (r *Request) hash() uint64 { return scramble(r.schema.seed ^ maphash.String(seed, r.flow)) }
