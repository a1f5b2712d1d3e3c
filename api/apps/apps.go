// Package apps is the group apps/v1: the workloads that keep a number of pods running, and the revisions of their
// templates. Their shared validation is in validate_workload.go. api/podspec checks the template itself.
package apps

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of apps, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(
		controllerRevisions(),
		daemonSets(),
		deployments(),
		replicaSets(),
		statefulSets(),
	)
}
