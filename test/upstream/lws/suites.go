//go:build pin

// Package upstream pins the release of LeaderWorkerSet's test suites, and the modules that they
// need. This file is never compiled.
package upstream

import (
	_ "sigs.k8s.io/lws/pkg/controllers"
	_ "sigs.k8s.io/lws/pkg/webhooks"
	_ "sigs.k8s.io/lws/test/testutils"
	_ "sigs.k8s.io/lws/test/wrappers"
)
