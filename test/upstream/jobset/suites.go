//go:build pin

// Package upstream pins the release of JobSet whose own test suites run with our assets, and the modules that they
// need. Nothing is built of this file.
package upstream

import (
	_ "sigs.k8s.io/jobset/pkg/controllers"
	_ "sigs.k8s.io/jobset/pkg/util/testing"
	_ "sigs.k8s.io/jobset/pkg/webhooks"
	_ "sigs.k8s.io/jobset/test/util"
)
