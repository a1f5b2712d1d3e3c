// Package amount bounds the numbers in API objects, which may have any size and sign: durations can then be added to
// the present time, and a thousand amounts can be added up without an overflow. It has only pure functions.
package amount

import (
	"cmp"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Max is the largest amount that is counted, so that a thousand amounts can be added up. No node has so much.
const Max = 1 << 53

// Of returns a quantity in units of 10^scale, rounded up. The API accepts quantities, and sums of them, that do not fit
// an int64 in these units. They count as Max, like all amounts above it: Quantity's own conversion returns arbitrary
// numbers for them, even 0.
func Of(q resource.Quantity, scale resource.Scale) int64 {
	if q.AsApproximateFloat64() >= Max*math.Pow10(int(scale)) {
		return Max
	}
	return q.ScaledValue(scale)
}

// Longest bounds every duration that is a number in an object, so that it can be added to the present time.
const Longest = 100 * 365 * 24 * time.Hour

// Seconds converts a number of seconds in an object to a duration of at most Longest. A negative number counts as 0.
func Seconds(n int64) time.Duration {
	return time.Duration(Within(n, 0, int64(Longest/time.Second))) * time.Second
}

// Within returns v, or the nearer of the bounds least and most if v is outside.
func Within[T cmp.Ordered](v, least, most T) T { return min(max(v, least), most) }

// Plus adds two amounts, which must not be negative. A sum that does not fit an int64 becomes math.MaxInt64.
func Plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Times multiplies an amount by n, which must not be negative. Like Plus, it returns at most math.MaxInt64.
func Times(n int, amount int64) int64 {
	if amount > 0 && int64(n) > math.MaxInt64/amount {
		return math.MaxInt64
	}
	return int64(n) * amount
}
