//go:build !linux

package netns

import (
	"errors"
	"fmt"
	"os"
)

var errLinux = fmt.Errorf("network namespaces are Linux': %w", errors.ErrUnsupported)

// New makes a namespace.
func New() (*os.File, error) { return nil, errLinux }

// Current is the namespace of the calling thread.
func Current() (*os.File, error) { return nil, errLinux }

// Do calls do in a namespace; nil is the caller's.
func Do(namespace *os.File, do func() error) error {
	if namespace == nil {
		return do()
	}
	return errLinux
}

// Same reports whether two files are the same namespace.
func Same(_, _ *os.File) bool { return false }
