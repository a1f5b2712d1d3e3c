package simulated

import (
	"errors"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/internal/limits"
	"github.com/coxswain-dev/coxswain/node/amount"
)

// Bounds of the values in simulation annotations of pods and Nodes. A value outside of its bounds counts as the nearest
// bound.
const (
	longest     = 365 * 24 * time.Hour // of ready-after, run-for, ready-for, unready-for and log-every
	longestSlow = time.Hour
	// shortestTurn is the minimum of ready-for and unready-for: each turn ends with a write to the API.
	shortestTurn     = time.Second
	shortestLogEvery = 100 * time.Millisecond

	maxExitCode  = 255
	maxFailures  = 1_000_000
	maxPullError = 1024      // bytes; it is in every status and Event
	maxLogLines  = 10_000    // that are kept of an endless log
	maxLogBytes  = 1 << 20   // that are kept of an endless log
	maxCPU       = 1_000_000 // cores
	maxBytes     = 1 << 50   // of memory and of disk
	maxPIDs      = 1 << 22   // the kernel's PID_MAX_LIMIT
)

// annotatedDuration returns the duration in an annotation, within bounds. An annotation that is not a duration is
// ignored.
func annotatedDuration(annotations map[string]string, key string, least, most time.Duration) (time.Duration, bool) {
	d, err := time.ParseDuration(annotations[key])
	if err != nil {
		return 0, false
	}
	return amount.Within(d, least, most), true
}

// annotatedNumber returns the whole number in an annotation, within bounds.
func annotatedNumber(annotations map[string]string, key string, most int64) (int64, bool) {
	n, err := strconv.ParseInt(annotations[key], 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return amount.Within(n, 0, most), true
}

// annotatedQuantity returns the quantity in an annotation, within bounds.
func annotatedQuantity(annotations map[string]string, key string, most int64) (q resource.Quantity, ok bool) {
	text, ok := annotations[key]
	if !ok {
		return q, false
	}
	q, err := limits.ParseQuantity(text)
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
