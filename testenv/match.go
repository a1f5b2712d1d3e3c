package testenv

import (
	"slices"
	"strings"
)

// Match selects requests. An empty field matches everything, so that Match{} matches every request of the code
// under test.
//
//	testenv.Match{Verb: "update,patch", Resource: "sites.example.com/status", Namespace: "shop"}
//
// The requests of the control plane's own parts (controllers, scheduler, nodes) match only if User is set.
type Match struct {
	// Verb is the API's verb, or several separated by commas: get, list, watch, create, update, patch, delete,
	// deletecollection. A request that is not about a resource has the HTTP method in lower case.
	Verb string
	// Resource is written as in a role: "pods" is the pods themselves, "pods/status" a subresource, "pods/*" all of
	// them, "*/scale" the scale of every kind. A group may follow the name, as for kubectl:
	// "sites.example.com/status". A value that begins with a slash is another path, such as "/openapi/v3"; it may
	// end in *.
	Resource string
	// Namespace and Name are the ones in the request's path. A create has no name yet.
	Namespace, Name string
	// User is the name of the user: "system:serviceaccount:shop:operator".
	User string
	// UserAgent is a prefix of the client's User-Agent. A controller-runtime manager's is by default its program's
	// name: "manager/v0.0.0".
	UserAgent string
	// Func, if not nil, must match as well. It is called for concurrent requests, and must not change them.
	Func func(*Call) bool
}

// matches reports whether all fields match a call.
func (m *Match) matches(c *Call) bool {
	switch {
	case c.UserAgent == ownAgent:
		return false
	case m.User == "" && c.part(), m.User != "" && m.User != c.User:
		return false
	case m.Verb != "" && m.Verb != c.Verb && !slices.Contains(strings.Split(m.Verb, ","), c.Verb):
		return false
	case m.Namespace != "" && m.Namespace != c.Namespace, m.Name != "" && m.Name != c.Name:
		return false
	case !strings.HasPrefix(c.UserAgent, m.UserAgent):
		return false
	case m.Resource != "" && !c.isOn(m.Resource):
		return false
	}
	return m.Func == nil || m.Func(c)
}

// matchesAny reports whether one of the matches matches a call. Without a match, it reports whether the call is not
// a part's.
func matchesAny(all []Match, c *Call) bool {
	if len(all) == 0 {
		return !c.part()
	}
	return slices.ContainsFunc(all, func(m Match) bool { return m.matches(c) })
}

// isOn reports whether a call is about a resource, in the notation of Match.Resource.
func (c *Call) isOn(resource string) bool {
	if strings.HasPrefix(resource, "/") {
		prefix, wild := strings.CutSuffix(resource, "*")
		return c.Path != "" && (c.Path == resource || wild && strings.HasPrefix(c.Path, prefix))
	}
	resource, subresource, _ := strings.Cut(resource, "/")
	plural, group, grouped := strings.Cut(resource, ".")
	switch {
	case c.Resource == "", plural != "*" && plural != c.Resource, grouped && group != c.Group:
		return false
	}
	return subresource == c.Subresource || subresource == "*" && c.Subresource != ""
}

// ownAgent is the User-Agent of an environment's own requests, which never match.
const ownAgent = "coxswain-testenv"

// part reports whether a call was made by a part of the control plane.
func (c *Call) part() bool {
	switch c.User {
	case "system:kube-controller-manager", "system:kube-scheduler":
		return true
	}
	if c.UserAgent == ownAgent {
		return true
	}
	return strings.HasPrefix(c.User, "system:node:") || strings.HasPrefix(c.User, "system:serviceaccount:kube-system:")
}
