package sliceplan

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// Owner is whose slices are planned, and what they all have in common.
type Owner struct {
	// Namespace and Name are those of the owner, and Reference refers to it. Slices of others are deleted.
	Namespace, Name string
	Reference       metav1.OwnerReference
	// Labels are the slices' labels, by which they are found.
	Labels map[string]string
	// Annotations, if not nil, are kept on each slice beside the time of the last change.
	Annotations map[string]string
	// Max is how many endpoints a slice holds, from 1 to 1000.
	Max int
	// Placeholder keeps an empty slice where there are no endpoints: it states that there is nothing, which is
	// not the same as not knowing.
	Placeholder bool
	// KeepHints leaves endpoints the hints that they have, whatever the wanted ones have: they are given
	// afterwards, to all slices of the plan, also those that are unchanged; and then Settle is to be called.
	KeepHints bool
}

// Plan is what to write so that the slices of an owner show a layout. All slices in it but those to
// delete are copies.
type Plan struct {
	Owner
	Create, Update, Delete []*discoveryv1.EndpointSlice
	// Unchanged need not be written.
	Unchanged []*discoveryv1.EndpointSlice

	existing []*discoveryv1.EndpointSlice
}

// New plans for an owner whose slices are the existing ones.
func New(owner Owner, existing []*discoveryv1.EndpointSlice, wanted Layout) *Plan {
	p := &Plan{Owner: owner, existing: existing}
	byType := map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		// A slice of an address type that has gone, or of an earlier Service of this name.
		if _, ok := wanted[s.AddressType]; !ok || !p.owns(s) {
			p.Delete = append(p.Delete, s)
			continue
		}
		byType[s.AddressType] = append(byType[s.AddressType], s)
	}
	for _, t := range slices.Sorted(maps.Keys(wanted)) {
		p.arrange(t, byType[t], wanted[t])
	}
	return p
}

// Existing are the slices of a Service that have this manager and are to stay.
func Existing(lister discoverylisters.EndpointSliceLister, namespace, service,
	manager string) ([]*discoveryv1.EndpointSlice, error) {
	all, err := lister.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: manager,
	}))
	return slices.DeleteFunc(all, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil }), err
}

func (p *Plan) owns(s *discoveryv1.EndpointSlice) bool {
	ref := metav1.GetControllerOfNoCopy(s)
	return ref != nil && ref.UID == p.Reference.UID
}

// arrange plans the slices of one address type.
func (p *Plan) arrange(t discoveryv1.AddressType, existing []*discoveryv1.EndpointSlice, wanted Groups) {
	if len(wanted) == 0 && p.Placeholder {
		wanted = Groups{"": {ports: []discoveryv1.EndpointPort{}}}
	}
	a := &arrangement{Plan: p, addressType: t}
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
	*Plan
	addressType discoveryv1.AddressType
	made        []*discoveryv1.EndpointSlice // new ones
	spare       []*discoveryv1.EndpointSlice // nothing of them is wanted any more
}

// group plans the slices that have one set of ports. Endpoints stay where they are if they can;
// new ones go into slices that must be written anyway, then into one that has room for all the rest, then
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
		n := min(len(rest), max(0, a.Max-len(s.Endpoints)))
		for _, id := range rest[:n] {
			s.Endpoints = append(s.Endpoints, g.endpoints[id])
		}
		rest = rest[n:]
	}
	for _, s := range changed {
		fill(s)
	}
	for len(rest) > 0 {
		s := a.roomiest(unchanged, len(rest))
		if s != nil {
			unchanged = slices.DeleteFunc(unchanged, func(o *discoveryv1.EndpointSlice) bool { return o == s })
			changed = append(changed, s)
		} else {
			s = a.newSlice(g.ports)
			a.made = append(a.made, s)
		}
		fill(s)
	}
	a.Update = append(a.Update, changed...)
	a.Unchanged = append(a.Unchanged, unchanged...)
}

// Settle moves slices to those to update that are not as they exist, and takes out those that are.
func (p *Plan) Settle() {
	exists := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range p.existing {
		exists[s.Name] = s
	}
	all := slices.Concat(p.Update, p.Unchanged)
	p.Update, p.Unchanged = nil, nil
	for _, s := range all {
		if equality.Semantic.DeepEqual(s, exists[s.Name]) {
			p.Unchanged = append(p.Unchanged, s)
		} else {
			p.Update = append(p.Update, s)
		}
	}
}

// placeholder keeps one empty slice, or makes it.
func (a *arrangement) placeholder(g *group, empty []*discoveryv1.EndpointSlice) {
	for i, s := range empty {
		if len(s.Endpoints) == 0 && !a.dress(s.DeepCopy()) {
			a.spare = append(a.spare, slices.Delete(slices.Clone(empty), i, i+1)...)
			return
		}
	}
	a.spare = append(a.spare, empty...)
	a.made = append(a.made, a.newSlice(g.ports))
}

// keep returns a copy of s with the endpoints that are still wanted, each as it is now, takes
// those out of left, and reports whether it differs from s.
func (a *arrangement) keep(s *discoveryv1.EndpointSlice, left map[string]discoveryv1.Endpoint) (
	next *discoveryv1.EndpointSlice, differs bool) {
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
		if a.KeepHints {
			now.Hints = s.Endpoints[i].Hints
		}
		differs = differs || !equality.Semantic.DeepEqual(s.Endpoints[i], now)
		next.Endpoints = append(next.Endpoints, now)
	}
	return next, a.dress(next) || differs
}

// reuse turns a slice that would be deleted beside one that would be made into an update.
func (a *arrangement) reuse() {
	for _, s := range a.made {
		if len(a.spare) == 0 {
			a.Create = append(a.Create, s)
			continue
		}
		old := a.spare[0].DeepCopy()
		a.spare = a.spare[1:]
		old.Ports, old.Endpoints = s.Ports, s.Endpoints
		a.dress(old)
		a.Update = append(a.Update, old)
	}
	a.Delete = append(a.Delete, a.spare...)
}

// roomiest is the slice that n more endpoints fill best, or nil where they fit in none.
func (p *Plan) roomiest(all []*discoveryv1.EndpointSlice, n int) *discoveryv1.EndpointSlice {
	var best *discoveryv1.EndpointSlice
	for _, s := range all {
		if len(s.Endpoints)+n <= p.Max && (best == nil || len(s.Endpoints) > len(best.Endpoints)) {
			best = s
		}
	}
	return best
}

func byName(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) }

// dress gives a slice the labels and annotations of all, and reports whether it had others.
func (p *Plan) dress(s *discoveryv1.EndpointSlice) (changed bool) {
	if !maps.Equal(s.Labels, p.Labels) {
		s.Labels, changed = maps.Clone(p.Labels), true
	}
	if p.Annotations == nil {
		return changed
	}
	wanted := maps.Clone(p.Annotations)
	if since, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]; ok {
		wanted[corev1.EndpointsLastChangeTriggerTime] = since
	}
	if !maps.Equal(s.Annotations, wanted) {
		s.Annotations, changed = wanted, true
	}
	return changed
}

func (a *arrangement) newSlice(ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    prefix(a.Name),
			Namespace:       a.Namespace,
			OwnerReferences: []metav1.OwnerReference{a.Reference},
		},
		AddressType: a.addressType,
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	a.dress(s)
	return s
}

// prefix joins with a dash where the name stays valid.
func prefix(owner string) string {
	if len(owner)+1 <= 63-5 {
		return owner + "-"
	}
	return owner
}
