//go:build pin

// Package upstream pins the release of Flux's server-side apply whose own test suites run with our assets. Nothing is
// built of this file.
package upstream

import (
	_ "github.com/fluxcd/pkg/ssa"
	_ "github.com/fluxcd/pkg/ssa/jsondiff"
)
