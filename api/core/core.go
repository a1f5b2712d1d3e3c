// Package core is the core group, v1: pods, services, nodes, volumes and the types that other groups refer to.
// Registrations are in the files of their kinds. Longer parts have separate files: pod_*.go, validate_*.go.
//
// The specs of pods and of volume claims, which other groups embed, are in api/podspec. References lists the fields of
// types that other groups embed. The package imports no other group.
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
