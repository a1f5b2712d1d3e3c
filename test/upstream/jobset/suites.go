//go:build pin

// Package upstream pins the release of JobSet's test suites, and the modules that they
// need. This file is never compiled.
package upstream

import (
	_ "sigs.k8s.io/jobset/pkg/controllers"
	_ "sigs.k8s.io/jobset/pkg/util/testing"
	_ "sigs.k8s.io/jobset/pkg/webhooks"
	_ "sigs.k8s.io/jobset/test/util"
)
