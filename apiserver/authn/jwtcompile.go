package authn

import (
	"sync"

	celgo "github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// claimExpressions are the compiled expressions of an issuer. Expressions that it does not have are nil.
type claimExpressions struct {
	username, groups, uid *cel.Expression
	// extra are the expressions of the mappings, in the same order.
	extra []*cel.Expression
	// claimRules and userRules are rules that must be true.
	claimRules, userRules []rule
	// required are the values that claims must have.
	required []ClaimValidationRule
}

// rule is an expression that must be true, and the message if it is not.
type rule struct {
	*cel.Expression
	message string
}

// The variables of expressions. Each is the only one in its scope.
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

// claimCompiler compiles the expressions of one issuer and collects the errors.
type claimCompiler struct {
	errs field.ErrorList
	// verified reports whether an expression reads claims.email_verified.
	verified bool
}

// compile validates and compiles the rules and mappings of an issuer. path is the issuer's field path.
func (a *JWTAuthenticator) compile(path *field.Path) (*claimExpressions, field.ErrorList) {
	c, x := &claimCompiler{}, &claimExpressions{}
	c.claimRules(x, a.ClaimValidationRules, path.Child("claimValidationRules"))
	c.mappings(x, &a.ClaimMappings, path.Child("claimMappings"))
	c.userRules(x, a.UserValidationRules, path.Child("userValidationRules"))
	return x, c.errs
}

func (c *claimCompiler) fault(err *field.Error) { c.errs = append(c.errs, err) }

func (c *claimCompiler) expression(scope func() (*cel.Scope, error), source string, want cel.Result,
	path *field.Path) *cel.Expression {
	s, err := scope()
	if err != nil {
		c.fault(field.InternalError(path, err))
		return nil
	}
	x := s.Compile(source, want)
	if x.Err != nil {
		c.fault(field.Invalid(path, source, x.Err.Error()))
		return nil
	}
	return x
}

// claims compiles an expression over claims.
func (c *claimCompiler) claims(source string, want cel.Result, path *field.Path) *cel.Expression {
	return c.expression(claimsScope, source, want, path)
}

func (c *claimCompiler) noteVerified(x *cel.Expression) {
	c.verified = c.verified || x != nil && x.Selects(claimsVariable, "email_verified")
}

func (c *claimCompiler) claimRules(x *claimExpressions, rules []ClaimValidationRule, root *field.Path) {
	claims, expressions := sets.New[string](), sets.New[string]()
	for i, r := range rules {
		path := root.Index(i)
		switch {
		case r.Claim != "" && r.Expression != "":
			c.fault(field.Invalid(path, r.Claim, "claim and expression can't both be set"))
		case r.Claim == "" && r.Expression == "":
			c.fault(field.Required(path, "claim or expression is required"))
		case r.Claim != "":
			if r.Message != "" {
				c.fault(field.Invalid(path.Child("message"), r.Message, "may not be specified when claim is set"))
			}
			if claims.Has(r.Claim) {
				c.fault(field.Duplicate(path.Child("claim"), r.Claim))
			}
			claims.Insert(r.Claim)
			x.required = append(x.required, r)
		default:
			if r.RequiredValue != "" {
				c.fault(field.Invalid(path.Child("requiredValue"), r.RequiredValue,
					"may not be specified when expression is set"))
			}
			if expressions.Has(r.Expression) {
				c.fault(field.Duplicate(path.Child("expression"), r.Expression))
				continue
			}
			expressions.Insert(r.Expression)
			e := c.claims(r.Expression, cel.Bool, path.Child("expression"))
			c.noteVerified(e)
			x.claimRules = append(x.claimRules, rule{e, r.Message})
		}
	}
}

func (c *claimCompiler) mappings(x *claimExpressions, m *ClaimMappings, path *field.Path) {
	x.username = c.prefixed(m.Username, true, path.Child("username"))
	c.noteVerified(x.username)
	addresses := x.username != nil && x.username.Selects(claimsVariable, "email")
	x.groups = c.prefixed(m.Groups, false, path.Child("groups"))
	switch {
	case m.UID.Claim != "" && m.UID.Expression != "":
		c.fault(field.Invalid(path.Child("uid"), "", "claim and expression can't both be set"))
	case m.UID.Expression != "":
		x.uid = c.claims(m.UID.Expression, cel.Any, path.Child("uid", "expression"))
	}
	keys := sets.New[string]()
	for i, e := range m.Extra {
		path := path.Child("extra").Index(i)
		c.errs = append(c.errs, validateExtraKey(e.Key, path.Child("key"))...)
		if keys.Has(e.Key) {
			c.fault(field.Duplicate(path.Child("key"), e.Key))
			continue
		}
		keys.Insert(e.Key)
		if e.ValueExpression == "" {
			c.fault(field.Required(path.Child("valueExpression"), ""))
			continue
		}
		value := c.claims(e.ValueExpression, cel.Any, path.Child("valueExpression"))
		c.noteVerified(value)
		x.extra = append(x.extra, value)
	}
	if addresses && !c.verified {
		c.fault(field.Invalid(path.Child("username", "expression"), m.Username.Expression,
			"claims.email_verified must be used in claimMappings.username.expression or "+
				"claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is "+
				"used in claimMappings.username.expression"))
	}
}

func (c *claimCompiler) prefixed(m PrefixedClaimOrExpression, required bool, path *field.Path) *cel.Expression {
	switch {
	case m.Expression != "" && m.Claim != "":
		c.fault(field.Invalid(path, "", "claim and expression can't both be set"))
	case m.Expression != "":
		if m.Prefix != nil {
			c.fault(field.Invalid(path.Child("prefix"), *m.Prefix, "may not be specified when expression is set"))
		}
		return c.claims(m.Expression, cel.Any, path.Child("expression"))
	case m.Claim != "":
		if m.Prefix == nil {
			c.fault(field.Required(path.Child("prefix"),
				"prefix is required when claim is set. It can be set to an empty string to disable prefixing"))
		}
	case required:
		c.fault(field.Required(path, "claim or expression is required"))
	}
	return nil
}

func (c *claimCompiler) userRules(x *claimExpressions, rules []UserValidationRule, root *field.Path) {
	expressions := sets.New[string]()
	for i, r := range rules {
		path := root.Index(i).Child("expression")
		switch {
		case r.Expression == "":
			c.fault(field.Required(path, ""))
		case expressions.Has(r.Expression):
			c.fault(field.Duplicate(path, r.Expression))
		default:
			expressions.Insert(r.Expression)
			x.userRules = append(x.userRules,
				rule{c.expression(userScope, r.Expression, cel.Bool, path), r.Message})
		}
	}
}
