package node

import (
	"cmp"
	"errors"
	"math"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/bounds"
)

// What pods and Nodes may say of their simulation. A value below its bounds counts as the least, one above them as the most.
const (
	longestSimulated = 365 * 24 * time.Hour // of ready-after, run-for, ready-for, unready-for and log-every
	longestSlow      = time.Hour
	// shortestTurn is the least of ready-for and unready-for, each of which ends with a write to the API.
	shortestTurn     = time.Second
	shortestLogEvery = 100 * time.Millisecond

	maxExitCode       = 255
	maxFailures       = 1_000_000
	maxPullError      = 1024      // bytes; it is in every status and Event
	maxSimulatedLines = 10_000    // that are kept of an endless log
	maxSimulatedLog   = 1 << 20   // bytes that are kept of it
	maxSimulatedCPU   = 1_000_000 // cores
	maxSimulatedBytes = 1 << 50   // of memory and of disk
	maxSimulatedPIDs  = 1 << 22   // the kernel's PID_MAX_LIMIT
)

// longest bounds every duration that is a number in an object, so that it can be added to the present.
const longest = 100 * 365 * 24 * time.Hour

// seconds is a number of seconds in an object as a duration of at most longest; less than none is none.
func seconds(n int64) time.Duration {
	return time.Duration(within(n, 0, int64(longest/time.Second))) * time.Second
}

func within[T cmp.Ordered](v, least, most T) T { return min(max(v, least), most) }

// plus adds amounts, none of which is negative, and stays at the largest number there is.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// times multiplies as plus adds.
func times(n int, amount int64) int64 {
	if amount > 0 && int64(n) > math.MaxInt64/amount {
		return math.MaxInt64
	}
	return int64(n) * amount
}

// annotatedDuration is a duration of a pod's or Node's annotations within bounds. What is none is as if it were not there.
func annotatedDuration(annotations map[string]string, key string, least, most time.Duration) (time.Duration, bool) {
	d, err := time.ParseDuration(annotations[key])
	if err != nil {
		return 0, false
	}
	return within(d, least, most), true
}

// annotatedNumber is annotatedDuration of a whole number.
func annotatedNumber(annotations map[string]string, key string, most int64) (int64, bool) {
	n, err := strconv.ParseInt(annotations[key], 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return within(n, 0, most), true
}

// annotatedQuantity is annotatedDuration of a quantity.
func annotatedQuantity(annotations map[string]string, key string, most int64) (q resource.Quantity, ok bool) {
	text, ok := annotations[key]
	if !ok {
		return q, false
	}
	q, err := bounds.ParseQuantity(text)
	switch {
	case err != nil:
		return q, false
	case q.Sign() < 0:
		q = resource.Quantity{}
	case q.CmpInt64(most) > 0:
		q = *resource.NewQuantity(most, resource.BinarySI)
	}
	return q, true
}
