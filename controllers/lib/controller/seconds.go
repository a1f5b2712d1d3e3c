package controller

import (
	"math"
	"time"
)

// Seconds is a time that an object gives in seconds. What is more than a Duration holds, 292 years, is the longest
// Duration: multiplied plainly it would come out as any time at all, a negative one too.
func Seconds(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Second)
	return time.Duration(max(-most, min(n, most))) * time.Second
}

// Int32 is n as the API counts, or the nearest number that it can write. Sums and differences of such counts are
// made of ints, for they need not be an int32.
func Int32(n int) int32 { return int32(max(math.MinInt32, min(n, math.MaxInt32))) }
