//go:build pin

// Package upstream pins the release of LeaderWorkerSet whose own test suites run with our assets, and the modules that
// they need. Nothing is built of this file.
package upstream

import (
	_ "sigs.k8s.io/lws/pkg/controllers"
	_ "sigs.k8s.io/lws/pkg/webhooks"
	_ "sigs.k8s.io/lws/test/testutils"
	_ "sigs.k8s.io/lws/test/wrappers"
)
