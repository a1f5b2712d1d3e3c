//go:build !linux

package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
)

var errLinux = fmt.Errorf("proxy: nftables are Linux': %w", errors.ErrUnsupported)

// Run fails elsewhere than on Linux.
func Run(context.Context, *rest.Config, Options) error { return errLinux }

// Cleanup fails elsewhere than on Linux.
func Cleanup(*os.File) error { return errLinux }
