package structural

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// all are the estimates of the rules below a site.
func (r *RuleSite) all(t *testing.T) []RuleEstimate {
	t.Helper()
	if r == nil {
		return nil
	}
	list, err := r.Estimates()
	require.NoError(t, err)
	for _, name := range r.schema.names {
		list = append(list, r.Property(name).all(t)...)
	}
	list = append(list, r.Items().all(t)...)
	return append(list, r.AdditionalProperties().all(t)...)
}

func TestRuleSite_EstimatesLikeEstimateRules(t *testing.T) {
	t.Parallel()
	const rule = `x-kubernetes-validations: [{rule: self == oldSelf, messageExpression: "'a'"}]`
	s, err := New(properties(t, `{type: object, properties: {
		spec: {type: object, `+rule+`, properties: {s: {type: string, maxLength: 7, `+rule+`}}},
		list: {type: array, maxItems: 5, items: {type: string, maxLength: 7, `+rule+`}},
		endless: {type: array, items: {type: object, properties: {i: {type: integer, `+rule+`}}}},
		map: {type: object, maxProperties: 5, additionalProperties: {type: integer, `+rule+`}},
		"a b": {type: string, maxLength: 4, `+rule+`}}}`))
	require.NoError(t, err)
	var want, got []uint64
	s.EstimateRules(func(e RuleEstimate) bool {
		want = append(want, e.Cost)
		return true
	})
	for _, e := range s.RuleSite(nil).all(t) {
		require.NoError(t, e.Err)
		require.NoError(t, e.MessageErr)
		require.True(t, e.UsesOldSelf)
		require.Equal(t, "x-kubernetes-validations[0]", e.Path.String())
		got = append(got, e.Cost)
	}
	require.Len(t, got, 6)
	require.ElementsMatch(t, want, got)
}

func TestRuleSite_ReadsStoredExpressionsAsTheyAre(t *testing.T) {
	t.Parallel()
	s, err := New(properties(t, `{type: object, x-kubernetes-validations: [{rule: "true"}]}`))
	require.NoError(t, err)
	asked := ""
	list, err := s.RuleSite(func(expression string) bool { asked = expression; return true }).Estimates()
	require.NoError(t, err)
	require.NoError(t, list[0].Err)
	require.Equal(t, "true", asked)
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

// An object's name has at most 253 characters, or as many as its schema says: a rule may read it.
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
