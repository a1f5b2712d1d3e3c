//go:build !linux

package podnetwork

import "errors"

// Unsupported returns errors.ErrUnsupported on this platform.
func Unsupported() error { return errors.ErrUnsupported }
