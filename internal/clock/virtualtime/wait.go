package virtualtime

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Wait waits by a clock, and reports whether the time has passed before ctx ended. Nothing is waited for where the time
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
