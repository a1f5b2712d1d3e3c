package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// claimSet holds the claims of a valid token.
type claimSet struct {
	raw    map[string]json.RawMessage
	expiry time.Time
	// values are the claims in the form that expressions need; made when the first one needs them.
	values map[string]any
}

func (c *claimSet) has(name string) bool {
	_, ok := c.raw[name]
	return ok
}

// registered are the claims that the library reads, in any case (RFC 7519, section 4.1).
var registered = []string{"iss", "sub", "aud", "exp", "nbf", "iat"}

// check rejects a token with a claim that equals a registered one except for case. A provider may let its users
// have claims of their own, and one called AUD must not be taken for the audience.
func (c *claimSet) check() error {
	for name := range c.raw {
		for _, reserved := range registered {
			if name != reserved && strings.EqualFold(name, reserved) {
				return fmt.Errorf("claim %q may be taken for %q", name, reserved)
			}
		}
	}
	return nil
}

func claim[V any](c *claimSet, name string) (v V, err error) {
	raw, ok := c.raw[name]
	if !ok {
		return v, errors.New("claim not present")
	}
	return v, json.Unmarshal(raw, &v)
}

// variables returns the variables of expressions over claims.
func (c *claimSet) variables() (map[string]any, error) {
	if c.values == nil {
		claims := make(map[string]any, len(c.raw))
		for name, raw := range c.raw {
			var v any
			if err := utiljson.Unmarshal(raw, &v); err != nil { // whole numbers are int64
				return nil, fmt.Errorf("claim %q: %w", name, err)
			}
			claims[name] = v
		}
		c.values = map[string]any{claimsVariable: claims}
	}
	return c.values, nil
}

// mapping makes a user from one token. Its expressions share a budget.
type mapping struct {
	*jwtIssuer
	ctx    context.Context
	claims *claimSet
	budget int64
}

// mappingTime limits the time of all expressions for one token. It is far more than they need. Their cost is
// limited as well, but the library's calculation of the cost of nested loops can itself take seconds.
const mappingTime = time.Second

// user maps the claims and checks the rules, in kube-apiserver's order.
func (i *jwtIssuer) user(ctx context.Context, claims *claimSet) (u *User, err error) {
	ctx, cancel := context.WithTimeout(ctx, mappingTime)
	defer cancel()
	m := &mapping{jwtIssuer: i, ctx: ctx, claims: claims, budget: cel.PolicyBudget}
	u = &User{}
	if u.Name, err = m.name(); err != nil {
		return nil, err
	}
	if u.Groups, err = m.groupsOf(); err != nil {
		return nil, err
	}
	if u.UID, err = m.uidOf(); err != nil {
		return nil, err
	}
	if u.Extra, err = m.extraOf(); err != nil {
		return nil, err
	}
	if err := m.checkClaims(); err != nil {
		return nil, err
	}
	return u, m.checkUser(u)
}

// eval evaluates an expression over claims.
func (m *mapping) eval(x *cel.Expression) (cel.Evaluation, error) {
	values, err := m.claims.variables()
	if err != nil {
		return cel.Evaluation{}, err
	}
	return m.evalWith(x, values)
}

func (m *mapping) evalWith(x *cel.Expression, values map[string]any) (cel.Evaluation, error) {
	result, err := x.Eval(m.ctx, values, &m.budget)
	if err == nil {
		err = result.Err
	}
	return result, err
}

func (m *mapping) name() (name string, err error) {
	username := m.config.ClaimMappings.Username
	if m.username != nil {
		if name, err = m.text(m.username); err != nil {
			return "", fmt.Errorf("error evaluating username claim expression: %w", err)
		}
	} else {
		if name, err = claim[string](m.claims, username.Claim); err != nil {
			return "", fmt.Errorf("parse username claims %q: %w", username.Claim, err)
		}
		if err := m.checkAddress(username.Claim); err != nil {
			return "", err
		}
	}
	if name == "" { // with a prefix, all users without a name would be the same user
		return "", errors.New("the token has no user name")
	}
	return prefixOf(username) + name, nil
}

func prefixOf(m PrefixedClaimOrExpression) string {
	if m.Prefix == nil {
		return ""
	}
	return *m.Prefix
}

// checkAddress rejects an address that the provider has not verified: it is only the user's own claim.
// https://openid.net/specs/openid-connect-core-1_0.html#StandardClaims
func (m *mapping) checkAddress(name string) error {
	if name != "email" || !m.claims.has("email_verified") {
		return nil
	}
	verified, err := claim[bool](m.claims, "email_verified")
	if err != nil {
		return fmt.Errorf("parse 'email_verified' claim: %w", err)
	}
	if !verified {
		return errors.New("email not verified")
	}
	return nil
}

// text evaluates an expression that must return a string.
func (m *mapping) text(x *cel.Expression) (string, error) {
	result, err := m.eval(x)
	if err != nil {
		return "", err
	}
	text, ok := result.Text()
	if !ok || result.Type() != "string" { // not an optional string
		return "", errors.New("the expression must return a string")
	}
	return text, nil
}

func (m *mapping) groupsOf() ([]string, error) {
	mapped := m.config.ClaimMappings.Groups
	if m.groups != nil {
		groups, err := m.texts(m.groups)
		if err != nil {
			return nil, fmt.Errorf("error evaluating group claim expression: %w", err)
		}
		return groups, nil
	}
	if mapped.Claim == "" || !m.claims.has(mapped.Claim) {
		return nil, nil
	}
	groups, err := claim[[]string](m.claims, mapped.Claim)
	if err != nil {
		one, err := claim[string](m.claims, mapped.Claim)
		if err != nil {
			return nil, fmt.Errorf("parse groups claim %q: %w", mapped.Claim, err)
		}
		groups = []string{one}
	}
	for i, group := range groups {
		groups[i] = prefixOf(mapped) + group
	}
	return groups, nil
}

// texts evaluates an expression that must return a string or a list of strings. Empty strings are left out, and
// null is an empty list.
func (m *mapping) texts(x *cel.Expression) (all []string, err error) {
	result, err := m.eval(x)
	if err != nil {
		return nil, err
	}
	value, err := result.Plain()
	if err != nil {
		return nil, err
	}
	list, ok := value.([]any)
	if !ok && value != nil {
		list = []any{value}
	}
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil, errors.New("expression must return a string or a list of strings")
		}
		if text != "" {
			all = append(all, text)
		}
	}
	return all, nil
}

func (m *mapping) uidOf() (uid string, err error) {
	mapped := m.config.ClaimMappings.UID
	switch {
	case m.uid != nil:
		if uid, err = m.text(m.uid); err != nil {
			return "", fmt.Errorf("error evaluating uid claim expression: %w", err)
		}
	case mapped.Claim != "":
		if uid, err = claim[string](m.claims, mapped.Claim); err != nil {
			return "", fmt.Errorf("parse uid claim %q: %w", mapped.Claim, err)
		}
	}
	return uid, nil
}

func (m *mapping) extraOf() (map[string][]string, error) {
	extra := map[string][]string{}
	if id, err := claim[string](m.claims, "jti"); err == nil && id != "" {
		extra[ExtraCredentialID] = []string{"JTI=" + id}
	}
	for i, x := range m.extra {
		mapped := m.config.ClaimMappings.Extra[i]
		values, err := m.texts(x)
		if err != nil {
			return nil, fmt.Errorf("error evaluating extra claim expression: %s: %w", mapped.ValueExpression, err)
		}
		if len(values) > 0 {
			extra[mapped.Key] = values
		}
	}
	if len(extra) == 0 {
		return nil, nil
	}
	return extra, nil
}

func (m *mapping) checkClaims() error {
	for _, r := range m.required {
		value, err := claim[string](m.claims, r.Claim)
		if err != nil {
			return fmt.Errorf("required claim %s: %w", r.Claim, err)
		}
		if value != r.RequiredValue {
			return fmt.Errorf("required claim %s value does not match", r.Claim)
		}
	}
	if len(m.claimRules) == 0 {
		return nil
	}
	values, err := m.claims.variables()
	if err != nil {
		return err
	}
	if err := m.check(m.claimRules, values); err != nil {
		return fmt.Errorf("error evaluating claim validation expression: %w", err)
	}
	return nil
}

func (m *mapping) checkUser(u *User) error {
	if len(m.userRules) == 0 {
		return nil
	}
	groups, extra := u.Groups, u.Extra
	if groups == nil {
		groups = []string{}
	}
	if extra == nil {
		extra = map[string][]string{}
	}
	err := m.check(m.userRules, map[string]any{userVariable: map[string]any{
		"username": u.Name, "uid": u.UID, "groups": groups, "extra": extra}})
	if err != nil {
		return fmt.Errorf("error evaluating user info validation rule: %w", err)
	}
	return nil
}

// check returns an error unless all rules are true.
func (m *mapping) check(rules []rule, values map[string]any) error {
	for _, r := range rules {
		result, err := m.evalWith(r.Expression, values)
		if err != nil {
			return err
		}
		if !result.True() {
			return fmt.Errorf("validation expression '%s' failed: %s", r.Source, r.message)
		}
	}
	return nil
}
