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
	// Path leads to the rule from the site's value.
	Path *field.Path
	// Err and MessageErr say why the rule and its messageExpression do not compile.
	Err, MessageErr error
	// UsesOldSelf reports whether it is a transition rule.
	UsesOldSelf bool
	// Cost is that of all calls for one object in the worst case, MessageCost that of one call, in the units of
	// cel.PerCallLimit.
	Cost, MessageCost uint64
}

// endless is the number of values that an unbounded list or map can hold.
const endless = math.MaxUint64

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
