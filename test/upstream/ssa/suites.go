//go:build pin

// Package upstream pins the release of Flux's server-side apply with its test suites, and the modules that they
// need. This file is never compiled.
package upstream

import (
	_ "github.com/fluxcd/pkg/ssa"
	_ "github.com/fluxcd/pkg/ssa/jsondiff"
)
