package cel

import (
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/validation"
)

// Authorizer decides the permission checks of expressions. It is called during an evaluation, in the evaluation's
// goroutine.
type Authorizer interface {
	Authorize(Check) (allowed bool, reason string, err error)
}

// Check is one permission check, for a path of the server or for a resource of any version.
type Check struct {
	// As is the user. nil means the author of the request.
	As   *authenticationv1.UserInfo
	Verb string
	Path string

	Group, Resource, Subresource, Namespace, Name string
	// FieldSelector and LabelSelector narrow a list or watch. Empty ones do not.
	FieldSelector, LabelSelector string
}

// Resource is the resource of a request, as in authorizer.requestResource.
type Resource struct {
	Group, Resource, Subresource, Namespace, Name string
}

// The steps of a check's method chain. Each is a copy of the previous one with more fields.
type (
	target  struct{ authorizer Authorizer }
	request struct {
		target
		Check
	}
	group         struct{ request }
	resourceCheck struct{ request }
	path          struct{ request }
	decision      struct {
		allowed bool
		reason  string
		err     error
	}
)

var authorizerLibrary = library{name: "kubernetes.authz", functions: map[string][]celgo.FunctionOpt{
	"path": {member("authorizer_path", args(authorizerType, celgo.StringType), pathCheckType,
		binary(func(a request, name string) ref.Val {
			if strings.TrimSpace(name) == "" {
				return types.NewErr("path must not be empty")
			}
			a.Path = name
			return wrap(pathCheckType, path{a})
		}))},
	"group": {member("authorizer_group", args(authorizerType, celgo.StringType), groupCheckType,
		binary(func(a request, name string) ref.Val {
			a.Group = name
			return wrap(groupCheckType, group{a})
		}))},
	"serviceAccount": {member("authorizer_serviceaccount", args(authorizerType, celgo.StringType, celgo.StringType),
		authorizerType, ternary(asServiceAccount))},
	"resource": {member("groupcheck_resource", args(groupCheckType, celgo.StringType), resourceCheckType,
		binary(func(g group, name string) ref.Val {
			if strings.TrimSpace(name) == "" {
				return types.NewErr("resource must not be empty")
			}
			g.Resource = name
			return wrap(resourceCheckType, resourceCheck(g))
		}))},
	"subresource":   {narrowed("resourcecheck_subresource", func(c *Check, text string) { c.Subresource = text })},
	"namespace":     {narrowed("resourcecheck_namespace", func(c *Check, text string) { c.Namespace = text })},
	"name":          {narrowed("resourcecheck_name", func(c *Check, text string) { c.Name = text })},
	"fieldSelector": {narrowed("authorizer_fieldselector", func(c *Check, text string) { c.FieldSelector = text })},
	"labelSelector": {narrowed("authorizer_labelselector", func(c *Check, text string) { c.LabelSelector = text })},
	"check": {
		member("pathcheck_check", args(pathCheckType, celgo.StringType), decisionType,
			binary(func(p path, verb string) ref.Val {
				return p.decide(verb)
			})),
		member("resourcecheck_check", args(resourceCheckType, celgo.StringType), decisionType,
			binary(func(r resourceCheck, verb string) ref.Val {
				return r.decide(verb)
			})),
	},
	"allowed": {member("decision_allowed", args(decisionType), celgo.BoolType, unary(func(d decision) ref.Val {
		return types.Bool(d.allowed)
	}))},
	"reason": {member("decision_reason", args(decisionType), celgo.StringType, unary(func(d decision) ref.Val {
		return types.String(d.reason)
	}))},
	"errored": {member("decision_errored", args(decisionType), celgo.BoolType, unary(func(d decision) ref.Val {
		return types.Bool(d.err != nil)
	}))},
	"error": {member("decision_error", args(decisionType), celgo.StringType, unary(func(d decision) ref.Val {
		if d.err == nil {
			return types.String("")
		}
		return types.String(d.err.Error())
	}))},
}}

func wrap[T any](typ *types.Type, v T) ref.Val { return value[T]{typ: typ, wrapped: v} }

func narrowed(id string, say func(*Check, string)) celgo.FunctionOpt {
	return member(id, args(resourceCheckType, celgo.StringType), resourceCheckType,
		binary(func(r resourceCheck, text string) ref.Val {
			say(&r.Check, text)
			return wrap(resourceCheckType, r)
		}))
}

func asServiceAccount(a request, namespace, name string) ref.Val {
	if len(validation.ValidateServiceAccountName(name, false)) > 0 {
		return types.NewErr("Invalid service account name")
	}
	if len(validation.ValidateNamespaceName(namespace, false)) > 0 {
		return types.NewErr("Invalid service account namespace")
	}
	a.As = &authenticationv1.UserInfo{
		Username: "system:serviceaccount:" + namespace + ":" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return wrap(authorizerType, a)
}

func (a request) decide(verb string) ref.Val {
	a.Verb = verb
	allowed, reason, err := a.authorizer.Authorize(a.Check)
	return wrap(decisionType, decision{allowed, reason, err})
}

func authorizerValue(authorizer Authorizer) ref.Val {
	return wrap(authorizerType, request{target: target{authorizer}})
}

func resourceValue(authorizer Authorizer, r Resource) ref.Val {
	return wrap(resourceCheckType, resourceCheck{request{target{authorizer}, Check{
		Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Namespace: r.Namespace, Name: r.Name,
	}}})
}
