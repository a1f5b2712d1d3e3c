package node

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// maxAmount is the largest amount that counts: a thousand of them can be added up. No node has as much.
const maxAmount = 1 << 53

// amountOf is a quantity in units of 10^scale, rounded up. The API takes quantities that are no int64 in these units, and sums of
// them; those, and whatever is above maxAmount, count as maxAmount, for Quantity's own conversion makes anything of them, 0 too.
func amountOf(q resource.Quantity, scale resource.Scale) int64 {
	if q.AsApproximateFloat64() >= maxAmount*math.Pow10(int(scale)) {
		return maxAmount
	}
	return q.ScaledValue(scale)
}
