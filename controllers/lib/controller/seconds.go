package controller

import (
	"math"
	"time"
)

// Seconds converts a time in seconds from an object. More seconds than a Duration holds, 292 years, become the
// longest Duration: a plain multiplication would overflow to any value, even a negative one.
func Seconds(n int64) time.Duration {
	const limit = math.MaxInt64 / int64(time.Second)
	return time.Duration(max(-limit, min(n, limit))) * time.Second
}

// Int32 converts a count to the API's type, and saturates. Sums and differences of counts are computed as ints,
// because they may not fit an int32.
func Int32(n int) int32 { return int32(max(math.MinInt32, min(n, math.MaxInt32))) }
