package virtualtime

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Wait waits until d has passed on a clock, and reports whether it passed before ctx ended. It returns at once if d
// is not positive.
func Wait(ctx context.Context, c clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
