//go:build !linux

package policy

import (
	"errors"
	"fmt"
	"os"
)

var errLinux = fmt.Errorf("network policies require nftables on Linux: %w", errors.ErrUnsupported)

// Cleanup deletes the rules from a network namespace.
func Cleanup(*os.File) error { return errLinux }

func openKernel(*os.File) (kernel, error) { return nil, errLinux }
