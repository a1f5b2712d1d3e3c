//go:build pin

// Package upstream pins the release of Cluster API whose own test suites run with our assets, and the modules that they
// need. Nothing is built of this file.
package upstream

import (
	_ "sigs.k8s.io/cluster-api/controllers/clustercache"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/cluster"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/machine"
	_ "sigs.k8s.io/cluster-api/core/reconcilers/machineset"
)
