//go:build !linux

package listener

import "errors"

func acceptFrom(uintptr, []int) error { return errors.ErrUnsupported }
