package cel

import (
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/validation"
)

// Authorizer answers the permission checks of expressions. It is called during an evaluation, in the
// evaluation's goroutine.
type Authorizer interface {
	Authorize(Check) (allowed bool, reason string, err error)
}

// Check is one permission check, of a path of the server or of a resource of any version.
type Check struct {
	// As is the user; nil is the author of the request.
	As   *authenticationv1.UserInfo
	Verb string
	Path string

	Group, Resource, Subresource, Namespace, Name string
	// FieldSelector and LabelSelector narrow a list or watch; empty ones do not.
	FieldSelector, LabelSelector string
}

// Resource is the resource of a request: the start of authorizer.requestResource.
type Resource struct {
	Group, Resource, Subresource, Namespace, Name string
}

// The steps of a check's method chain. Each is a copy of the previous one with more fields.
type (
	asked  struct{ by Authorizer }
	asking struct {
		asked
		Check
	}
	group         struct{ asking }
	resourceCheck struct{ asking }
	path          struct{ asking }
	decision      struct {
		allowed bool
		reason  string
		err     error
	}
)

var authorizerLibrary = library{name: "kubernetes.authz", functions: map[string][]celgo.FunctionOpt{
	"path": {member("authorizer_path", args(authorizerType, celgo.StringType), pathCheckType,
		binary(func(a asking, name string) ref.Val {
			if strings.TrimSpace(name) == "" {
				return types.NewErr("path must not be empty")
			}
			a.Path = name
			return step(pathCheckType, path{a})
		}))},
	"group": {member("authorizer_group", args(authorizerType, celgo.StringType), groupCheckType,
		binary(func(a asking, name string) ref.Val {
			a.Group = name
			return step(groupCheckType, group{a})
		}))},
	"serviceAccount": {member("authorizer_serviceaccount", args(authorizerType, celgo.StringType, celgo.StringType),
		authorizerType, ternary(asServiceAccount))},
	"resource": {member("groupcheck_resource", args(groupCheckType, celgo.StringType), resourceCheckType,
		binary(func(g group, name string) ref.Val {
			if strings.TrimSpace(name) == "" {
				return types.NewErr("resource must not be empty")
			}
			g.Resource = name
			return step(resourceCheckType, resourceCheck(g))
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

func step[T any](typ *types.Type, of T) ref.Val { return value[T]{typ: typ, of: of} }

func narrowed(id string, say func(*Check, string)) celgo.FunctionOpt {
	return member(id, args(resourceCheckType, celgo.StringType), resourceCheckType,
		binary(func(r resourceCheck, text string) ref.Val {
			say(&r.Check, text)
			return step(resourceCheckType, r)
		}))
}

func asServiceAccount(a asking, namespace, name string) ref.Val {
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
	return step(authorizerType, a)
}

func (a asking) decide(verb string) ref.Val {
	a.Verb = verb
	allowed, reason, err := a.by.Authorize(a.Check)
	return step(decisionType, decision{allowed, reason, err})
}

func authorizerValue(by Authorizer) ref.Val { return step(authorizerType, asking{asked: asked{by}}) }

func resourceValue(by Authorizer, r Resource) ref.Val {
	return step(resourceCheckType, resourceCheck{asking{asked{by}, Check{
		Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Namespace: r.Namespace, Name: r.Name,
	}}})
}
