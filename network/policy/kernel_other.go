//go:build !linux

package policy

import (
	"errors"
	"fmt"
	"os"
)

var errLinux = fmt.Errorf("network policies are enforced by Linux' nftables: %w", errors.ErrUnsupported)

// Cleanup deletes the rules from a network namespace.
func Cleanup(*os.File) error { return errLinux }

func openKernel(*os.File) (kernel, error) { return nil, errLinux }
