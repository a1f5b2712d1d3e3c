// Package amount makes bounded numbers of those in API objects, which may be as large or as negative as a user likes:
// durations that can be added to the present, and amounts of which a thousand can be added up. Pure functions.
package amount

import (
	"cmp"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Max is the largest amount that counts: a thousand of them can be added up. No node has as much.
const Max = 1 << 53

// Of is a quantity in units of 10^scale, rounded up. The API takes quantities that are no int64 in
// these units, and sums of them; those, and whatever is above maxAmount, count as maxAmount, for Quantity's
// own conversion makes anything of them, 0 too.
func Of(q resource.Quantity, scale resource.Scale) int64 {
	if q.AsApproximateFloat64() >= Max*math.Pow10(int(scale)) {
		return Max
	}
	return q.ScaledValue(scale)
}

// Longest bounds every duration that is a number in an object, so that it can be added to the present.
const Longest = 100 * 365 * 24 * time.Hour

// Seconds is a number of seconds in an object as a duration of at most longest; less than none is none.
func Seconds(n int64) time.Duration {
	return time.Duration(Within(n, 0, int64(Longest/time.Second))) * time.Second
}

func Within[T cmp.Ordered](v, least, most T) T { return min(max(v, least), most) }

// Plus adds amounts, none of which is negative, and stays at the largest number there is.
func Plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Times multiplies as plus adds.
func Times(n int, amount int64) int64 {
	if amount > 0 && int64(n) > math.MaxInt64/amount {
		return math.MaxInt64
	}
	return int64(n) * amount
}
