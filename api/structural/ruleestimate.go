package structural

import (
	"math"
	"math/bits"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// RuleEstimate is what the validation of a definition asks about one of its rules.
type RuleEstimate struct {
	apiextensionsv1.ValidationRule
	// Path leads to the rule, from the schema's root or from the site's value.
	Path *field.Path
	// Err and MessageErr say why the rule and its messageExpression do not compile, PathErr why fieldPath is none.
	Err, MessageErr, PathErr error
	// UsesOldSelf reports whether it is a transition rule.
	UsesOldSelf bool
	// Cost and MessageCost are those of all calls for one object in the worst case, in the units of
	// cel.PerCallLimit.
	Cost, MessageCost uint64
}

// EstimateRules compiles the schema's rules as new ones, and calls yield with each until it returns false.
func (s *Schema) EstimateRules(yield func(RuleEstimate) bool) {
	if s == nil || s.rules == nil {
		return
	}
	c := ruleCompiler{}
	root := c.node(s, s, true, c.types.declare(s, true, rootType))
	root.estimates(nil, 1, yield)
}

// endless is the number of values that an unbounded list or map can hold.
const endless = math.MaxUint64

// estimates walks over the rules. times is how many values there can be of this one.
func (n *ruleNode) estimates(path *field.Path, times uint64, yield func(RuleEstimate) bool) bool {
	if n == nil {
		return true
	}
	calls := times
	if calls == endless { // as many as a request has room for, with a comma each
		calls = uint64(maxRequest / (n.typ.least + 1))
	}
	for i, r := range n.rules {
		at := path.Child("x-kubernetes-validations").Index(i)
		estimate := RuleEstimate{ValidationRule: r.ValidationRule, Path: at, Err: r.err, MessageErr: r.messageErr,
			UsesOldSelf: r.usesOld, Cost: product(r.cost, calls), MessageCost: product(r.messageCost, calls)}
		if r.FieldPath != "" {
			_, estimate.PathErr = n.schema.ruleFieldPath(r.FieldPath)
		}
		if !yield(estimate) {
			return false
		}
	}
	for _, name := range n.names {
		if !n.properties[name].estimates(path.Child("properties").Key(name), times, yield) {
			return false
		}
	}
	for i, branch := range n.allOf {
		if !branch.estimates(path.Child("allOf").Index(i), times, yield) {
			return false
		}
	}
	entries, items := several(times, n.schema.bound().maxProperties), several(times, n.schema.bound().maxItems)
	return n.additional.estimates(path.Child("additionalProperties"), entries, yield) &&
		n.items.estimates(path.Child("items"), items, yield)
}

// several is how many values there can be in values of which each has at most bound.
func several(times uint64, bound *int64) uint64 {
	if bound == nil || times == endless {
		return endless
	}
	return product(times, uint64(max(*bound, 0)))
}

// product is a·b, or the largest number.
func product(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high > 0 {
		return math.MaxUint64
	}
	return low
}
