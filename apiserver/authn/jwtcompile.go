package authn

import (
	"sync"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// claimExpressions are the compiled expressions of an issuer. Those that it has not are nil.
type claimExpressions struct {
	username, groups, uid *cel.Expression
	// extra are the expressions of the mappings, in their order.
	extra []*cel.Expression
	// claimRules and userRules are rules that must be true.
	claimRules, userRules []rule
	// required are the values that claims must have.
	required []ClaimValidationRule
}

// rule is an expression that must be true, and what to say otherwise.
type rule struct {
	*cel.Expression
	message string
}

// The variables of expressions, each alone in its scope.
const (
	claimsVariable = "claims"
	userVariable   = "user"
)

const userType = "kubernetes.UserInfo"

var (
	claimsScope = sync.OnceValues(func() (*cel.Scope, error) {
		return cel.NewScope(map[string]*celgo.Type{claimsVariable: cel.Claims}, nil)
	})
	userScope = sync.OnceValues(func() (*cel.Scope, error) {
		return cel.NewScope(map[string]*celgo.Type{userVariable: cel.Struct(userType)}, map[string]cel.Fields{
			userType: {"username": cel.Text, "uid": cel.Text, "groups": cel.Texts, "extra": cel.TextLists},
		})
	})
)

// claimCompiler compiles the expressions of one issuer and collects what is wrong.
type claimCompiler struct {
	errs field.ErrorList
	// verified reports whether an expression reads claims.email_verified.
	verified bool
}

// compile checks the rules and mappings of an issuer, which is at a path.
func (a *JWTAuthenticator) compile(at *field.Path) (*claimExpressions, field.ErrorList) {
	c, x := &claimCompiler{}, &claimExpressions{}
	c.claimRules(x, a.ClaimValidationRules, at.Child("claimValidationRules"))
	c.mappings(x, &a.ClaimMappings, at.Child("claimMappings"))
	c.userRules(x, a.UserValidationRules, at.Child("userValidationRules"))
	return x, c.errs
}

func (c *claimCompiler) fault(err *field.Error) { c.errs = append(c.errs, err) }

func (c *claimCompiler) expression(scope func() (*cel.Scope, error), source string, want cel.Result,
	at *field.Path) *cel.Expression {
	s, err := scope()
	if err != nil {
		c.fault(field.InternalError(at, err))
		return nil
	}
	x := s.Compile(source, want)
	if x.Err != nil {
		c.fault(field.Invalid(at, source, x.Err.Error()))
		return nil
	}
	return x
}

// claims compiles an expression over claims.
func (c *claimCompiler) claims(source string, want cel.Result, at *field.Path) *cel.Expression {
	return c.expression(claimsScope, source, want, at)
}

func (c *claimCompiler) noteVerified(x *cel.Expression) {
	c.verified = c.verified || x != nil && x.Selects(claimsVariable, "email_verified")
}

func (c *claimCompiler) claimRules(x *claimExpressions, rules []ClaimValidationRule, root *field.Path) {
	claims, expressions := sets.New[string](), sets.New[string]()
	for i, r := range rules {
		at := root.Index(i)
		switch {
		case r.Claim != "" && r.Expression != "":
			c.fault(field.Invalid(at, r.Claim, "claim and expression can't both be set"))
		case r.Claim == "" && r.Expression == "":
			c.fault(field.Required(at, "claim or expression is required"))
		case r.Claim != "":
			if r.Message != "" {
				c.fault(field.Invalid(at.Child("message"), r.Message, "may not be specified when claim is set"))
			}
			if claims.Has(r.Claim) {
				c.fault(field.Duplicate(at.Child("claim"), r.Claim))
			}
			claims.Insert(r.Claim)
			x.required = append(x.required, r)
		default:
			if r.RequiredValue != "" {
				c.fault(field.Invalid(at.Child("requiredValue"), r.RequiredValue,
					"may not be specified when expression is set"))
			}
			if expressions.Has(r.Expression) {
				c.fault(field.Duplicate(at.Child("expression"), r.Expression))
				continue
			}
			expressions.Insert(r.Expression)
			e := c.claims(r.Expression, cel.Bool, at.Child("expression"))
			c.noteVerified(e)
			x.claimRules = append(x.claimRules, rule{e, r.Message})
		}
	}
}

func (c *claimCompiler) mappings(x *claimExpressions, m *ClaimMappings, at *field.Path) {
	x.username = c.prefixed(m.Username, true, at.Child("username"))
	c.noteVerified(x.username)
	addresses := x.username != nil && x.username.Selects(claimsVariable, "email")
	x.groups = c.prefixed(m.Groups, false, at.Child("groups"))
	switch {
	case m.UID.Claim != "" && m.UID.Expression != "":
		c.fault(field.Invalid(at.Child("uid"), "", "claim and expression can't both be set"))
	case m.UID.Expression != "":
		x.uid = c.claims(m.UID.Expression, cel.Any, at.Child("uid", "expression"))
	}
	keys := sets.New[string]()
	for i, e := range m.Extra {
		at := at.Child("extra").Index(i)
		c.errs = append(c.errs, validateExtraKey(e.Key, at.Child("key"))...)
		if keys.Has(e.Key) {
			c.fault(field.Duplicate(at.Child("key"), e.Key))
			continue
		}
		keys.Insert(e.Key)
		if e.ValueExpression == "" {
			c.fault(field.Required(at.Child("valueExpression"), ""))
			continue
		}
		value := c.claims(e.ValueExpression, cel.Any, at.Child("valueExpression"))
		c.noteVerified(value)
		x.extra = append(x.extra, value)
	}
	if addresses && !c.verified {
		c.fault(field.Invalid(at.Child("username", "expression"), m.Username.Expression,
			"claims.email_verified must be used in claimMappings.username.expression or "+
				"claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is "+
				"used in claimMappings.username.expression"))
	}
}

func (c *claimCompiler) prefixed(m PrefixedClaimOrExpression, required bool, at *field.Path) *cel.Expression {
	switch {
	case m.Expression != "" && m.Claim != "":
		c.fault(field.Invalid(at, "", "claim and expression can't both be set"))
	case m.Expression != "":
		if m.Prefix != nil {
			c.fault(field.Invalid(at.Child("prefix"), *m.Prefix, "may not be specified when expression is set"))
		}
		return c.claims(m.Expression, cel.Any, at.Child("expression"))
	case m.Claim != "":
		if m.Prefix == nil {
			c.fault(field.Required(at.Child("prefix"),
				"prefix is required when claim is set. It can be set to an empty string to disable prefixing"))
		}
	case required:
		c.fault(field.Required(at, "claim or expression is required"))
	}
	return nil
}

func (c *claimCompiler) userRules(x *claimExpressions, rules []UserValidationRule, root *field.Path) {
	expressions := sets.New[string]()
	for i, r := range rules {
		at := root.Index(i).Child("expression")
		switch {
		case r.Expression == "":
			c.fault(field.Required(at, ""))
		case expressions.Has(r.Expression):
			c.fault(field.Duplicate(at, r.Expression))
		default:
			expressions.Insert(r.Expression)
			x.userRules = append(x.userRules,
				rule{c.expression(userScope, r.Expression, cel.Bool, at), r.Message})
		}
	}
}
