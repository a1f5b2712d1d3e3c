//go:build !linux || !amd64

package wallclock

import (
	"errors"
	"time"
)

// Clock is the wall clock of a process.
type Clock struct{}

// Of returns errors.ErrUnsupported on this platform.
func Of(int) (*Clock, error) { return nil, errors.ErrUnsupported }

// Step returns errors.ErrUnsupported on this platform.
func (*Clock) Step(time.Duration) error { return errors.ErrUnsupported }

// Close has no effect on this platform.
func (*Clock) Close() error { return nil }
