//go:build !linux || !amd64

package wallclock

import (
	"errors"
	"time"
)

// Clock is the wall clock of a process.
type Clock struct{}

// Of returns errors.ErrUnsupported here.
func Of(int) (*Clock, error) { return nil, errors.ErrUnsupported }

// Step does nothing here.
func (*Clock) Step(time.Duration) error { return errors.ErrUnsupported }

// Close does nothing here.
func (*Clock) Close() error { return nil }
