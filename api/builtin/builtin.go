// Package builtin lists the kinds that every server has from its start. Only tests and the code that assembles a
// server import it. All other code takes an api.Registry.
package builtin

import (
	"slices"

	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/admissionregistration"
	"github.com/coxswain-dev/coxswain/api/apiextensions"
	"github.com/coxswain-dev/coxswain/api/apiregistration"
	"github.com/coxswain-dev/coxswain/api/apps"
	"github.com/coxswain-dev/coxswain/api/authentication"
	"github.com/coxswain-dev/coxswain/api/authorization"
	"github.com/coxswain-dev/coxswain/api/autoscaling"
	"github.com/coxswain-dev/coxswain/api/batch"
	"github.com/coxswain-dev/coxswain/api/certificates"
	"github.com/coxswain-dev/coxswain/api/coordination"
	"github.com/coxswain-dev/coxswain/api/core"
	"github.com/coxswain-dev/coxswain/api/discovery"
	"github.com/coxswain-dev/coxswain/api/events"
	"github.com/coxswain-dev/coxswain/api/flowcontrol"
	"github.com/coxswain-dev/coxswain/api/metrics"
	"github.com/coxswain-dev/coxswain/api/networking"
	"github.com/coxswain-dev/coxswain/api/node"
	"github.com/coxswain-dev/coxswain/api/policy"
	"github.com/coxswain-dev/coxswain/api/rbac"
	"github.com/coxswain-dev/coxswain/api/resource"
	"github.com/coxswain-dev/coxswain/api/scheduling"
	"github.com/coxswain-dev/coxswain/api/storage"
	"github.com/coxswain-dev/coxswain/api/storagemigration"
)

// Kinds returns the kinds that every server has from its start, in the order of discovery. Each call makes new
// registrations, so that registries in one process share no mutable state.
func Kinds() []*api.Resource { return KindsBy(clock.RealClock{}) }

// KindsBy returns the kinds for a server with its own clock. The kinds use it for defaults and checks that depend on
// the time.
func KindsBy(c clock.PassiveClock) []*api.Resource {
	core := core.Kinds()
	isEvent := func(r *api.Resource) bool { return r.Kind == "Event" }
	return slices.Concat(
		core,
		apiregistration.Kinds(),
		apps.Kinds(),
		authentication.Kinds(),
		authorization.Kinds(),
		events.Kinds(core[slices.IndexFunc(core, isEvent)]),
		autoscaling.Kinds(),
		batch.Kinds(),
		certificates.Kinds(c.Now),
		resource.Kinds(c.Now),
		networking.Kinds(),
		policy.Kinds(),
		rbac.Kinds(),
		storage.Kinds(),
		storagemigration.Kinds(),
		admissionregistration.Kinds(),
		apiextensions.Kinds(),
		scheduling.Kinds(),
		coordination.Kinds(),
		node.Kinds(),
		discovery.Kinds(),
		flowcontrol.Kinds(),
	)
}

// Metrics returns the kinds of metrics.k8s.io. In Kubernetes they belong to an extension API server, metrics-server,
// which most clusters have.
func Metrics() []*api.Resource { return metrics.Kinds() }
