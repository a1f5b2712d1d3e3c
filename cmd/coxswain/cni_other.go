//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
)

var errCNI = fmt.Errorf("cni: the network of pods needs Linux: %w", errors.ErrUnsupported)

func (f *cniFlags) run(context.Context, identities) error { return errCNI }

func (f *cniFlags) remove() error { return errCNI }
