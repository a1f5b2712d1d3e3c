package structural

import (
	"math"
	"math/bits"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// RuleEstimate describes one rule to the validation of definitions.
type RuleEstimate struct {
	apiextensionsv1.ValidationRule
	// Path leads to the rule from the site's value.
	Path *field.Path
	// Err and MessageErr are the compile errors of the rule and of its messageExpression.
	Err, MessageErr error
	// UsesOldSelf reports whether it is a transition rule.
	UsesOldSelf bool
	// Cost is the worst-case cost of all calls for one object, MessageCost that of one call, in the units of
	// cel.PerCallLimit.
	Cost, MessageCost uint64
}

// endless is the number of values that an unbounded list or map can hold.
const endless = math.MaxUint64

// several returns the number of values within times values that hold at most bound each.
func several(times uint64, bound *int64) uint64 {
	if bound == nil || times == endless {
		return endless
	}
	return product(times, uint64(max(*bound, 0)))
}

// product returns a·b, or the largest number if that overflows.
func product(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high > 0 {
		return math.MaxUint64
	}
	return low
}
