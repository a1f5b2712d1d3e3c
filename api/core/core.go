// Package core is the core group, v1: pods, services, nodes, volumes and the types that other groups refer to.
// Registrations are in the files of their kinds. Longer parts have separate files: default_pod.go, validate_pod*.go,
// warn_pod.go.
//
// Groups with objects that embed a pod template, a volume claim or a node selector (apps, batch, storage, resource)
// use the defaults, validation and warnings that this package exports. It imports no other group.
package core

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of the core group, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return References.In(
		bindings(),
		componentStatuses(),
		configMaps(),
		endpoints(),
		events(),
		limitRanges(),
		namespaces(),
		nodes(),
		persistentVolumeClaims(),
		persistentVolumes(),
		podTemplates(),
		pods(),
		replicationControllers(),
		resourceQuotas(),
		secrets(),
		serviceAccounts(),
		services(),
	)
}
