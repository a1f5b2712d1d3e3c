// Package backoff computes the delays after failures: they double between a shortest and a longest one.
//
// A loop that tries again takes [Doubling], whose delays have a random part, so that clients that failed together do
// not come back together. Where the number of failures is kept elsewhere, or Kubernetes documents the exact delay (the
// pods of a Job, a pod that the scheduler could not place), [After] returns it without a random part.
package backoff

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Jitter is the largest random part of a delay, as a fraction of it that is added.
const Jitter = 0.2

// Doubling returns a back-off whose Step returns first, then twice as much each time, up to last, each with a random
// part. To start again after a success, assign a new one. It is not safe for concurrent use.
func Doubling(first, last time.Duration) wait.Backoff {
	return wait.Backoff{Duration: min(first, last), Factor: 2, Jitter: Jitter, Steps: math.MaxInt, Cap: last}
}

// After returns the delay after a number of failures, of 1 and more: first, then twice as much each time, up to last.
func After(failures int, first, last time.Duration) time.Duration {
	delay := min(first, last)
	for i := 1; i < failures && 0 < delay && delay < last; i++ {
		if delay > last/2 {
			return last
		}
		delay *= 2
	}
	return delay
}
