package endpointslice

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/endpointslices"
)

// The annotation service.kubernetes.io/topology-mode: Auto keeps a Service's traffic in its zone as far as that
// overloads no endpoint. The share of endpoints that serve a zone is the zone's share of the Nodes' CPU.
// Endpoints serve their own zone; the surplus of a zone serves other zones. If the endpoints cannot be
// distributed so, none has a hint.
// https://kubernetes.io/docs/concepts/services-networking/topology-aware-routing/

// overload is the largest fraction of its share that an endpoint may have to serve in addition.
const overload = 0.2

// topologyAware reports whether a Service has the annotation. It overrides spec.trafficDistribution.
func topologyAware(svc *corev1.Service) bool {
	mode, ok := svc.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	if !ok {
		mode = svc.Annotations[corev1.AnnotationTopologyMode]
	}
	return mode == "Auto" || mode == "auto"
}

// nodeMatters reports whether a change of a Node changes the zones' shares.
func nodeMatters(old, n *corev1.Node) bool {
	return nodeReady(old) != nodeReady(n) ||
		old.Labels[corev1.LabelTopologyZone] != n.Labels[corev1.LabelTopologyZone] ||
		!old.Status.Allocatable.Cpu().Equal(*n.Status.Allocatable.Cpu())
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// nodesChanged enqueues the topology-aware Services, which depend on the zones' shares.
func (e *endpointSlices) nodesChanged() {
	services, _ := e.services.List(labels.Everything()) // a lister never fails
	for _, svc := range services {
		if topologyAware(svc) {
			e.EnqueueObject(svc)
		}
	}
}

// zoneShares returns each zone's share of the CPU of all ready Nodes except the control plane's. It returns nil
// if a Node has no zone or no CPU, or if there is only one zone.
func (e *endpointSlices) zoneShares() map[string]float64 {
	nodes, _ := e.nodes.List(labels.Everything()) // a lister never fails
	shares, total := map[string]float64{}, 0.0
	for _, n := range nodes {
		_, control := n.Labels["node-role.kubernetes.io/control-plane"]
		_, master := n.Labels["node-role.kubernetes.io/master"]
		if control || master || !nodeReady(n) {
			continue
		}
		zone, cpu := n.Labels[corev1.LabelTopologyZone], float64(n.Status.Allocatable.Cpu().MilliValue())
		if zone == "" || cpu == 0 {
			return nil
		}
		shares[zone] += cpu
		total += cpu
	}
	if len(shares) < 2 {
		return nil
	}
	for zone := range shares {
		shares[zone] /= total
	}
	return shares
}

// hint sets the hints of a topology-aware Service in changes, and records Events about them as
// kube-controller-manager does. The slices in changes still have their old hints.
func (e *endpointSlices) hint(svc *corev1.Service, changes *endpointslices.Changes,
	existing []*discoveryv1.EndpointSlice) {
	key := controller.KeyOf(svc)
	shares := e.zoneShares()
	for _, t := range addressTypes(svc) {
		z := &zones{changes: changes, addressType: t}
		if reason := z.assign(shares); reason != "" {
			z.each(z.all(), func(e *discoveryv1.Endpoint) { e.Hints = nil })
			e.hinted.Delete(key)
			e.recordHints(svc, corev1.EventTypeWarning, "TopologyAwareHintsDisabled", reason, t)
			continue
		}
		if _, before := e.hinted.Swap(key, true); !before && !slices.ContainsFunc(existing, hasHints) {
			e.recordHints(svc, corev1.EventTypeNormal, "TopologyAwareHintsEnabled",
				"Topology Aware Hints has been enabled", t)
		}
	}
	changes.Recompute()
}

// unhinted records Events for a Service that is no longer topology-aware.
func (e *endpointSlices) unhinted(svc *corev1.Service) {
	if _, before := e.hinted.LoadAndDelete(controller.KeyOf(svc)); before {
		for _, t := range addressTypes(svc) {
			e.recordHints(svc, corev1.EventTypeWarning, "TopologyAwareHintsDisabled",
				"Topology Aware Hints has been disabled", t)
		}
	}
}

func (e *endpointSlices) recordHints(svc *corev1.Service, kind, reason, message string, t discoveryv1.AddressType) {
	e.recorder.Eventf(svc, kind, reason, "%s, addressType: %s", message, t)
}

func hasHints(s *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Hints != nil })
}

// zones assigns the endpoints of one address type to zones.
type zones struct {
	changes     *endpointslices.Changes
	addressType discoveryv1.AddressType
	// loose has the slices whose hints may change, mostly because they are written in any case.
	loose []*discoveryv1.EndpointSlice
}

// quota is the number of endpoints that should serve a zone.
type quota struct {
	minimum, maximum int
	desired          float64
}

// assign gives each ready endpoint a hint, or returns the reason why no endpoint can have one. A slice that
// need not be written keeps its hints, unless a zone would get more than its maximum or an endpoint has none.
func (z *zones) assign(shares map[string]float64) (reason string) {
	ready := 0
	z.each(z.all(), func(e *discoveryv1.Endpoint) {
		if *e.Conditions.Ready {
			ready++
		} else {
			e.Hints = nil
		}
	})
	quotas, reason := quotasOf(shares, ready)
	if reason != "" {
		return reason
	}
	z.loose = z.ofType(slices.Concat(z.changes.Create, z.changes.Update))
	have := map[string]int{}
	for _, s := range z.ofType(z.changes.Unchanged) {
		if hints, fit := hintsIn(s, have, quotas); fit {
			for zone, n := range hints {
				have[zone] += n
			}
		} else {
			z.loose = append(z.loose, s)
		}
	}
	z.each(z.loose, func(e *discoveryv1.Endpoint) {
		switch {
		case !*e.Conditions.Ready:
		case e.Zone == nil || *e.Zone == "":
			reason = "One or more endpoints do not have a zone specified"
		default:
			have[*e.Zone]++
			e.Hints = forZone(*e.Zone)
		}
	})
	if reason == "" {
		z.move(surplus(quotas, have))
	}
	return reason
}

// quotasOf returns the zones' quotas of the ready endpoints.
func quotasOf(shares map[string]float64, endpoints int) (quotas map[string]quota, reason string) {
	switch {
	case len(shares) == 0:
		return nil, "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
	case len(shares) > endpoints:
		return nil, fmt.Sprintf("Insufficient number of endpoints (%d endpoints, %d zones)", endpoints, len(shares))
	}
	quotas = make(map[string]quota, len(shares))
	left := endpoints
	for zone, share := range shares {
		desired := share * float64(endpoints)
		minimum := int(math.Ceil(desired / (1 + overload)))
		quotas[zone] = quota{minimum: minimum, desired: max(desired, float64(minimum))}
		left -= minimum
	}
	if left < 0 {
		return nil, fmt.Sprintf("Unable to allocate minimum required endpoints to each zone without exceeding "+
			"overload threshold (%d endpoints, %d zones)", endpoints, len(shares))
	}
	for zone, q := range quotas {
		q.maximum = q.minimum + left
		quotas[zone] = q
	}
	return quotas, ""
}

// hintsIn counts a slice's hints by zone, and reports whether they fit into the quotas beside the endpoints in
// have.
func hintsIn(s *discoveryv1.EndpointSlice, have map[string]int, quotas map[string]quota) (
	hints map[string]int, fit bool) {
	hints = map[string]int{}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !*e.Conditions.Ready {
			continue
		}
		if e.Hints == nil || len(e.Hints.ForZones) == 0 {
			return nil, false
		}
		for _, z := range e.Hints.ForZones {
			hints[z.Name]++
			if q, ok := quotas[z.Name]; !ok || have[z.Name]+hints[z.Name] > q.maximum {
				return nil, false
			}
		}
	}
	return hints, true
}

// surplus returns how many endpoints each zone should give to other zones, and how many each should take. The
// zone with the largest surplus gives to the zone with the largest deficit, until no whole endpoint is left to
// move.
func surplus(quotas map[string]quota, have map[string]int) (give, take map[string]int) {
	over, under := map[string]float64{}, map[string]float64{}
	for zone, q := range quotas {
		switch d := float64(have[zone]) - q.desired; {
		case d > 0:
			over[zone] = d
		case d < 0:
			under[zone] = -d
		}
	}
	give, take = map[string]int{}, map[string]int{}
	for {
		from, excess := largest(over)
		target, deficit := largest(under)
		if excess < 0.5 || deficit < 0.5 || excess < 1 && deficit < 1 {
			return give, take
		}
		give[from]++
		over[from]--
		take[target]++
		under[target]--
	}
}

func largest(zones map[string]float64) (zone string, n float64) {
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if zones[name] > n {
			zone, n = name, zones[name]
		}
	}
	return zone, n
}

// move assigns endpoints of the zones in give to the zones in take.
func (z *zones) move(give, take map[string]int) {
	z.each(z.loose, func(e *discoveryv1.Endpoint) {
		if !*e.Conditions.Ready || give[*e.Zone] == 0 {
			return
		}
		for _, target := range slices.Sorted(maps.Keys(take)) {
			if take[target] > 0 {
				give[*e.Zone]--
				take[target]--
				e.Hints = forZone(target)
				return
			}
		}
	})
}

func forZone(name string) *discoveryv1.EndpointHints {
	return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
}

func (z *zones) all() []*discoveryv1.EndpointSlice {
	return z.ofType(slices.Concat(z.changes.Create, z.changes.Update, z.changes.Unchanged))
}

func (z *zones) ofType(all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(all), func(s *discoveryv1.EndpointSlice) bool {
		return s.AddressType != z.addressType
	})
}

func (z *zones) each(all []*discoveryv1.EndpointSlice, do func(*discoveryv1.Endpoint)) {
	for _, s := range all {
		for i := range s.Endpoints {
			do(&s.Endpoints[i])
		}
	}
}
