//go:build pin

// Package upstream pins the release of Cluster API's test suites, and the modules that they
// need. This file is never compiled.
package upstream

import (
	_ "sigs.k8s.io/cluster-api/controllers/clustercache"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/cluster"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/machine"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/machineset"
)
