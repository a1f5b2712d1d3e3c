package structural

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/field"
)

// all returns the estimates of the rules at and below a site, with paths relative to the first site.
func (r *RuleSite) all(t testing.TB, path *field.Path) []RuleEstimate {
	t.Helper()
	if r == nil {
		return nil
	}
	list, err := r.Estimates()
	require.NoError(t, err)
	for i := range list {
		list[i].Path = path.Child("x-kubernetes-validations").Index(i)
	}
	for _, name := range r.schema.names {
		list = append(list, r.Property(name).all(t, path.Child("properties").Key(name))...)
	}
	list = append(list, r.Items().all(t, path.Child("items"))...)
	return append(list, r.AdditionalProperties().all(t, path.Child("additionalProperties"))...)
}

func TestRuleSite_AcceptsStoredExpressions(t *testing.T) {
	t.Parallel()
	s, err := New(properties(t, `{type: object, x-kubernetes-validations: [{rule: "true"}]}`))
	require.NoError(t, err)
	expr := ""
	list, err := s.RuleSite(func(expression string) bool { expr = expression; return true }).Estimates()
	require.NoError(t, err)
	require.NoError(t, list[0].Err)
	require.Equal(t, "true", expr)
}

func TestRuleSite_WithoutAType(t *testing.T) {
	t.Parallel()
	s, err := New(properties(t, `{type: object, properties: {a: {x-kubernetes-preserve-unknown-fields: true,
		x-kubernetes-validations: [{rule: "true"}]}, b: {type: string}}}`))
	require.NoError(t, err)
	root := s.RuleSite(nil)
	_, err = root.Property("a").Estimates()
	require.ErrorContains(t, err, "unable to convert structural schema to CEL declarations")
	require.Nil(t, root.Property("b"))
	require.Nil(t, root.Property("c").Items().AdditionalProperties())
}

// An object's name has at most 253 characters, or as many as its schema allows: a rule may read it.
func TestRuleSite_NameIsBounded(t *testing.T) {
	t.Parallel()
	cost := func(metadata string) uint64 {
		return estimate(t, properties(t, `{type: object, properties: {`+metadata+`}, x-kubernetes-validations: [
			{rule: "self.metadata.name.contains('a')"}]}`)).Cost
	}
	whole := cost("")
	require.Less(t, whole, uint64(200))
	require.Less(t, cost(`metadata: {type: object, properties: {name: {type: string, maxLength: 10}}}`), whole)
}
