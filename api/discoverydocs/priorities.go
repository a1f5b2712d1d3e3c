package discoverydocs

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/coxswain-dev/coxswain/api"
)

// Priority orders the lists of discovery: groups by Group and, within a group, versions by Version, the highest first.
// A group has the highest priority of its versions. kubectl resolves a resource name that several groups have to the
// group listed first.
type Priority struct{ Group, Version int32 }

// Custom is the priority of groups and versions that CustomResourceDefinitions define.
var Custom = Priority{1000, 100}

// priorities has kube-apiserver's values (cmd/kube-apiserver/app/aggregator.go,
// pkg/controlplane/apiserver/aggregator.go).
var priorities = map[schema.GroupVersion]Priority{
	{Version: "v1"}:                                        {18000, 1},
	{Group: "apps", Version: "v1"}:                         {17800, 15},
	{Group: "events.k8s.io", Version: "v1"}:                {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}:        {17700, 15},
	{Group: "authorization.k8s.io", Version: "v1"}:         {17600, 15},
	{Group: "autoscaling", Version: "v1"}:                  {17500, 15},
	{Group: "autoscaling", Version: "v2"}:                  {17500, 30},
	{Group: "batch", Version: "v1"}:                        {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}:          {17300, 15},
	{Group: "networking.k8s.io", Version: "v1"}:            {17200, 15},
	{Group: "policy", Version: "v1"}:                       {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:    {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:               {16800, 15},
	{Group: "apiextensions.k8s.io", Version: "v1"}:         {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}: {16700, 15},
	{Group: "scheduling.k8s.io", Version: "v1"}:            {16600, 15},
	{Group: "coordination.k8s.io", Version: "v1"}:          {16500, 15},
	{Group: "node.k8s.io", Version: "v1"}:                  {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:             {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:              {16200, 20},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: {16100, 21},
	{Group: "storagemigration.k8s.io", Version: "v1"}:      {15800, 10},
}

// Registered returns the priority of a built-in group and version in its APIService in kube-apiserver.
// apiregistration.k8s.io is not registered: it has the APIServices themselves, and comes first.
func Registered(gv schema.GroupVersion) (Priority, bool) {
	p, ok := priorities[gv]
	return p, ok
}

// apiregistration is listed first, above the highest priority that an APIService may have.
const (
	apiregistration = "apiregistration.k8s.io"
	first           = 20001
)

// Usual returns the priority of a group and version that this server serves without an APIService of its own.
// metrics.k8s.io has metrics-server's priority.
func Usual(gv schema.GroupVersion) Priority {
	switch gv.Group {
	case apiregistration:
		return Priority{first, 1}
	case "metrics.k8s.io":
		return Priority{100, 100}
	}
	if p, ok := priorities[gv]; ok {
		return p
	}
	return Custom
}

// Registrations are the effects of APIServices on discovery: groups and versions that other servers serve, and
// priorities other than the usual ones. A nil *Registrations has no effect.
type Registrations struct {
	// External are served by other servers, instead of this server's own kinds.
	External map[schema.GroupVersion]bool
	// Priorities has the priorities of External, and others that differ from the usual ones.
	Priorities map[schema.GroupVersion]Priority
}

// Elsewhere reports whether another server serves a group and version.
func (r *Registrations) Elsewhere(gv schema.GroupVersion) bool { return r != nil && r.External[gv] }

// groupVersions returns the groups and versions of a snapshot and of the registrations in the order of preference: by
// priority; with equal priorities, groups by name, and versions stable before beta before alpha and newer before
// older.
func groupVersions(s *api.Snapshot, r *Registrations) []schema.GroupVersion {
	order := map[schema.GroupVersion]Priority{}
	for _, res := range s.Resources {
		if gv := res.GroupVersion(); order[gv] == (Priority{}) {
			order[gv] = Usual(gv)
		}
	}
	if r != nil {
		for gv := range r.External {
			order[gv] = Custom
		}
		for gv, p := range r.Priorities {
			if _, listed := order[gv]; listed && gv.Group != apiregistration {
				order[gv] = p
			}
		}
	}
	groups := make(map[string]int32, len(order))
	gvs := make([]schema.GroupVersion, 0, len(order))
	for gv, p := range order {
		groups[gv.Group] = max(groups[gv.Group], p.Group)
		gvs = append(gvs, gv)
	}
	slices.SortFunc(gvs, func(a, b schema.GroupVersion) int {
		return cmp.Or(
			cmp.Compare(groups[b.Group], groups[a.Group]),
			cmp.Compare(a.Group, b.Group),
			cmp.Compare(order[b].Version, order[a].Version),
			version.CompareKubeAwareVersionStrings(b.Version, a.Version),
		)
	})
	return gvs
}
