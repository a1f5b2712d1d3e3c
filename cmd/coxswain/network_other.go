//go:build !linux

package main

import (
	"context"

	"github.com/coxswain-dev/coxswain/node"
)

// startNetwork starts no network: only Linux has the process runtime.
func (f *nodeFlags) startNetwork(context.Context, identities, *node.Options) (wait func(), err error) {
	return func() {}, nil
}
