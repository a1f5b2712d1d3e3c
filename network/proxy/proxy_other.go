//go:build !linux

package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
)

var errLinux = fmt.Errorf("proxy: nftables require Linux: %w", errors.ErrUnsupported)

// Run fails: the proxy requires Linux.
func Run(context.Context, *rest.Config, Options) error { return errLinux }

// Cleanup fails: the proxy requires Linux.
func Cleanup(*os.File) error { return errLinux }
