package endpointslice

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/backend"
)

// plan is what to write so that the slices of a Service show a layout. All slices in it but
// those to delete are copies.
type plan struct {
	namespace              string
	svc                    *corev1.Service
	labels                 map[string]string
	create, update, delete []*discoveryv1.EndpointSlice
}

func newPlan(svc *corev1.Service, existing []*discoveryv1.EndpointSlice, wanted layout) *plan {
	p := &plan{namespace: svc.Namespace, svc: svc, labels: labelsFor(svc)}
	byType := map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		// A slice of an address type that has gone, or of an earlier Service of this name.
		if _, ok := wanted[s.AddressType]; !ok || !metav1.IsControlledBy(s, svc) {
			p.delete = append(p.delete, s)
			continue
		}
		byType[s.AddressType] = append(byType[s.AddressType], s)
	}
	for _, t := range slices.Sorted(maps.Keys(wanted)) {
		p.arrange(t, byType[t], wanted[t])
	}
	return p
}

// arrange plans the slices of one address type.
func (p *plan) arrange(t discoveryv1.AddressType, existing []*discoveryv1.EndpointSlice, wanted groups) {
	if len(wanted) == 0 {
		// An empty slice tells that there is nothing, which is not the same as not knowing.
		wanted = groups{"": {ports: []discoveryv1.EndpointPort{}}}
	}
	a := &arrangement{plan: p, addressType: t}
	byPorts := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		byPorts[portsKey(s.Ports)] = append(byPorts[portsKey(s.Ports)], s)
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		a.group(wanted[key], byPorts[key])
		delete(byPorts, key)
	}
	for _, key := range slices.Sorted(maps.Keys(byPorts)) {
		a.spare = append(a.spare, byPorts[key]...)
	}
	a.reuse()
}

// arrangement is the plan for one address type while it is made.
type arrangement struct {
	*plan
	addressType discoveryv1.AddressType
	made        []*discoveryv1.EndpointSlice // new ones
	spare       []*discoveryv1.EndpointSlice // nothing of them is wanted any more
}

// group plans the slices that have one set of ports. What can stay where it is stays; what is
// new goes into slices that must be written anyway, then into one that has room for all the rest, then
// into new ones.
func (a *arrangement) group(g *group, existing []*discoveryv1.EndpointSlice) {
	left := maps.Clone(g.endpoints)
	var changed, unchanged, emptied []*discoveryv1.EndpointSlice
	for _, s := range slices.SortedFunc(slices.Values(existing), byName) {
		next, differs := a.keep(s, left)
		switch {
		case len(next.Endpoints) == 0:
			emptied = append(emptied, s)
		case differs:
			changed = append(changed, next)
		default:
			unchanged = append(unchanged, next)
		}
	}
	if len(g.endpoints) == 0 {
		a.placeholder(g, emptied)
		return
	}
	a.spare = append(a.spare, emptied...)
	rest := slices.Sorted(maps.Keys(left))
	fill := func(s *discoveryv1.EndpointSlice) {
		n := min(len(rest), max(0, MaxEndpoints-len(s.Endpoints)))
		for _, id := range rest[:n] {
			s.Endpoints = append(s.Endpoints, g.endpoints[id])
		}
		rest = rest[n:]
	}
	for _, s := range changed {
		fill(s)
	}
	for len(rest) > 0 {
		s := roomiest(unchanged, len(rest))
		if s != nil {
			unchanged = slices.DeleteFunc(unchanged, func(o *discoveryv1.EndpointSlice) bool { return o == s })
			changed = append(changed, s)
		} else {
			s = a.newSlice(g.ports)
			a.made = append(a.made, s)
		}
		fill(s)
	}
	a.update = append(a.update, changed...)
}

// placeholder keeps one empty slice, or makes it.
func (a *arrangement) placeholder(g *group, empty []*discoveryv1.EndpointSlice) {
	for i, s := range empty {
		if len(s.Endpoints) == 0 && equality.Semantic.DeepEqual(s.Labels, a.labels) {
			a.spare = append(a.spare, slices.Delete(slices.Clone(empty), i, i+1)...)
			return
		}
	}
	a.spare = append(a.spare, empty...)
	a.made = append(a.made, a.newSlice(g.ports))
}

// keep returns a copy of s with the endpoints that are still wanted, each as it is now, takes
// those out of left, and says whether it differs from s.
func (a *arrangement) keep(s *discoveryv1.EndpointSlice, left map[string]discoveryv1.Endpoint) (next *discoveryv1.EndpointSlice, differs bool) {
	next = s.DeepCopy()
	next.Endpoints = next.Endpoints[:0]
	for i := range s.Endpoints {
		id := identity(&s.Endpoints[i])
		now, ok := left[id]
		if !ok {
			differs = true
			continue
		}
		delete(left, id)
		differs = differs || !equality.Semantic.DeepEqual(s.Endpoints[i], now)
		next.Endpoints = append(next.Endpoints, now)
	}
	if !equality.Semantic.DeepEqual(s.Labels, a.labels) {
		next.Labels, differs = maps.Clone(a.labels), true
	}
	return next, differs
}

// reuse turns a slice that would be deleted beside one that would be made into an update.
func (a *arrangement) reuse() {
	for _, s := range a.made {
		if len(a.spare) == 0 {
			a.create = append(a.create, s)
			continue
		}
		old := a.spare[0].DeepCopy()
		a.spare = a.spare[1:]
		old.Labels, old.Ports, old.Endpoints = s.Labels, s.Ports, s.Endpoints
		a.update = append(a.update, old)
	}
	a.delete = append(a.delete, a.spare...)
}

// roomiest is the slice that n more endpoints fill best, or nil where they fit in none.
func roomiest(all []*discoveryv1.EndpointSlice, n int) *discoveryv1.EndpointSlice {
	var best *discoveryv1.EndpointSlice
	for _, s := range all {
		if len(s.Endpoints)+n <= MaxEndpoints && (best == nil || len(s.Endpoints) > len(best.Endpoints)) {
			best = s
		}
	}
	return best
}

func byName(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) }

func (a *arrangement) newSlice(ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    prefix(a.svc.Name),
			Namespace:       a.svc.Namespace,
			Labels:          maps.Clone(a.labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(a.svc, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: a.addressType,
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
}

// prefix joins with a dash where the name stays valid.
func prefix(service string) string {
	if len(service)+1 <= 63-5 {
		return service + "-"
	}
	return service
}

// labelsFor are the Service's labels and those by which slices are found.
func labelsFor(svc *corev1.Service) map[string]string {
	labels := maps.Clone(svc.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	delete(labels, corev1.IsHeadlessService)
	if backend.Headless(svc) {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[discoveryv1.LabelServiceName] = svc.Name
	labels[discoveryv1.LabelManagedBy] = ManagedBy
	return labels
}
