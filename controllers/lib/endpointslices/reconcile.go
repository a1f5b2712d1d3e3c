package endpointslices

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

// Owner is the object that owns the slices, with the properties that all of them have in common.
type Owner struct {
	// Namespace and Name name the owner, and Reference refers to it. Slices of others are deleted.
	Namespace, Name string
	Reference       metav1.OwnerReference
	// Labels are the slices' labels; they select the slices of the owner.
	Labels map[string]string
	// Annotations, if not nil, are kept on each slice beside the time of the last change.
	Annotations map[string]string
	// MaxEndpoints is how many endpoints a slice holds, from 1 to 1000.
	MaxEndpoints int
	// Placeholder keeps an empty slice where there are no endpoints: it states that there are none, which is not the
	// same as not knowing.
	Placeholder bool
	// KeepHints leaves endpoints the hints that they have, and ignores hints of the desired ones. The caller sets hints
	// afterwards, on all slices of the changes, also on unchanged ones; then it calls Recompute.
	KeepHints bool
}

// Changes holds the writes after which the slices of an owner show the desired endpoints. All slices in it, except
// the deleted ones, are copies.
type Changes struct {
	Owner
	Create, Update, Delete []*discoveryv1.EndpointSlice
	// Unchanged need not be written.
	Unchanged []*discoveryv1.EndpointSlice

	existing []*discoveryv1.EndpointSlice

	// For Metrics: the desired endpoints and the least number of slices for them, how the endpoints differ from the
	// existing ones, and the slices that Finalize has written.
	endpoints, desiredSlices int
	added, updated, removed  int
	written                  struct{ created, updated, deleted int }
}

// Reconcile compares the existing slices of an owner with the desired endpoints.
func Reconcile(owner Owner, existing []*discoveryv1.EndpointSlice, desired Desired) *Changes {
	c := &Changes{Owner: owner, existing: existing}
	byType := map[discoveryv1.AddressType][]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		// A slice of an address type that has gone, or of an earlier Service of this name.
		if _, ok := desired[s.AddressType]; !ok || !c.owns(s) {
			c.Delete = append(c.Delete, s)
			c.removed += len(s.Endpoints)
			continue
		}
		byType[s.AddressType] = append(byType[s.AddressType], s)
	}
	for _, t := range slices.Sorted(maps.Keys(desired)) {
		c.reconcileAddressType(t, byType[t], desired[t])
	}
	return c
}

// Existing returns the slices of a Service that have this manager and are not being deleted.
func Existing(lister discoverylisters.EndpointSliceLister, namespace, service,
	manager string) ([]*discoveryv1.EndpointSlice, error) {
	all, err := lister.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: manager,
	}))
	return slices.DeleteFunc(all, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil }), err
}

func (c *Changes) owns(s *discoveryv1.EndpointSlice) bool {
	ref := metav1.GetControllerOfNoCopy(s)
	return ref != nil && ref.UID == c.Reference.UID
}

// reconcileAddressType reconciles the slices of one address type.
func (c *Changes) reconcileAddressType(t discoveryv1.AddressType, existing []*discoveryv1.EndpointSlice,
	desired PortGroups) {
	if len(desired) == 0 && c.Placeholder {
		desired = PortGroups{"": {ports: []discoveryv1.EndpointPort{}}}
	}
	r := &reconciler{Changes: c, addressType: t}
	byPorts := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range existing {
		byPorts[portsKey(s.Ports)] = append(byPorts[portsKey(s.Ports)], s)
	}
	for _, key := range slices.Sorted(maps.Keys(desired)) {
		r.reconcilePorts(desired[key], byPorts[key])
		delete(byPorts, key)
	}
	for _, key := range slices.Sorted(maps.Keys(byPorts)) {
		r.spare = append(r.spare, byPorts[key]...)
		for _, s := range byPorts[key] {
			r.removed += len(s.Endpoints)
		}
	}
	r.reuse()
}

// reconciler holds the state while the slices of one address type are reconciled.
type reconciler struct {
	*Changes
	addressType discoveryv1.AddressType
	created     []*discoveryv1.EndpointSlice
	spare       []*discoveryv1.EndpointSlice // existing ones without a desired endpoint
}

// reconcilePorts reconciles the slices that have one set of ports. Endpoints stay where they are if they can. New ones
// go into slices that must be written anyway, then into one that has room for all the rest, then into new slices.
func (r *reconciler) reconcilePorts(g *portGroup, existing []*discoveryv1.EndpointSlice) {
	left := maps.Clone(g.endpoints)
	r.endpoints += len(g.endpoints)
	r.desiredSlices += max(1, (len(g.endpoints)+r.MaxEndpoints-1)/r.MaxEndpoints)
	var changed, unchanged, emptied []*discoveryv1.EndpointSlice
	for _, s := range slices.SortedFunc(slices.Values(existing), byName) {
		next, differs := r.keep(s, left)
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
		r.placeholder(g, emptied)
		return
	}
	r.spare = append(r.spare, emptied...)
	rest := slices.Sorted(maps.Keys(left))
	r.added += len(rest)
	fill := func(s *discoveryv1.EndpointSlice) {
		n := min(len(rest), max(0, r.MaxEndpoints-len(s.Endpoints)))
		for _, id := range rest[:n] {
			s.Endpoints = append(s.Endpoints, g.endpoints[id])
		}
		rest = rest[n:]
	}
	for _, s := range changed {
		fill(s)
	}
	for len(rest) > 0 {
		s := r.sliceToFill(unchanged, len(rest))
		if s != nil {
			unchanged = slices.DeleteFunc(unchanged, func(o *discoveryv1.EndpointSlice) bool { return o == s })
			changed = append(changed, s)
		} else {
			s = r.newSlice(g.ports)
			r.created = append(r.created, s)
		}
		fill(s)
	}
	r.Update = append(r.Update, changed...)
	r.Unchanged = append(r.Unchanged, unchanged...)
}

// Recompute compares the slices with the existing ones again: it adds slices to Update that differ and moves the
// others to Unchanged.
func (c *Changes) Recompute() {
	exists := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range c.existing {
		exists[s.Name] = s
	}
	all := slices.Concat(c.Update, c.Unchanged)
	c.Update, c.Unchanged = nil, nil
	for _, s := range all {
		if equality.Semantic.DeepEqual(s, exists[s.Name]) {
			c.Unchanged = append(c.Unchanged, s)
		} else {
			c.Update = append(c.Update, s)
		}
	}
}

// placeholder keeps one empty slice, or makes it.
func (r *reconciler) placeholder(g *portGroup, empty []*discoveryv1.EndpointSlice) {
	for i, s := range empty {
		if len(s.Endpoints) == 0 && !r.setMetadata(s.DeepCopy()) {
			r.spare = append(r.spare, slices.Delete(slices.Clone(empty), i, i+1)...)
			return
		}
	}
	r.spare = append(r.spare, empty...)
	r.created = append(r.created, r.newSlice(g.ports))
}

// keep returns a copy of s with the endpoints that are still desired, each in its present state, takes
// them out of left, and reports whether the copy differs from s.
func (c *Changes) keep(s *discoveryv1.EndpointSlice, left map[string]discoveryv1.Endpoint) (
	next *discoveryv1.EndpointSlice, differs bool) {
	next = s.DeepCopy()
	next.Endpoints = next.Endpoints[:0]
	for i := range s.Endpoints {
		id := identity(&s.Endpoints[i])
		now, ok := left[id]
		if !ok {
			differs = true
			c.removed++
			continue
		}
		delete(left, id)
		if c.KeepHints {
			now.Hints = s.Endpoints[i].Hints
		}
		if !equality.Semantic.DeepEqual(s.Endpoints[i], now) {
			differs = true
			c.updated++
		}
		next.Endpoints = append(next.Endpoints, now)
	}
	return next, c.setMetadata(next) || differs
}

// reuse turns a deletion and a creation of two slices into an update of one.
func (r *reconciler) reuse() {
	for _, s := range r.created {
		if len(r.spare) == 0 {
			r.Create = append(r.Create, s)
			continue
		}
		old := r.spare[0].DeepCopy()
		r.spare = r.spare[1:]
		old.Ports, old.Endpoints = s.Ports, s.Endpoints
		r.setMetadata(old)
		r.Update = append(r.Update, old)
	}
	r.Delete = append(r.Delete, r.spare...)
}

// sliceToFill returns the fullest slice that has room for n more endpoints, or nil if none has.
func (c *Changes) sliceToFill(all []*discoveryv1.EndpointSlice, n int) *discoveryv1.EndpointSlice {
	var best *discoveryv1.EndpointSlice
	for _, s := range all {
		if len(s.Endpoints)+n <= c.MaxEndpoints && (best == nil || len(s.Endpoints) > len(best.Endpoints)) {
			best = s
		}
	}
	return best
}

func byName(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) }

// setMetadata gives a slice the labels and annotations that all have, and reports whether it had others.
func (c *Changes) setMetadata(s *discoveryv1.EndpointSlice) (changed bool) {
	if !maps.Equal(s.Labels, c.Labels) {
		s.Labels, changed = maps.Clone(c.Labels), true
	}
	if c.Annotations == nil {
		return changed
	}
	annotations := maps.Clone(c.Annotations)
	if since, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]; ok {
		annotations[corev1.EndpointsLastChangeTriggerTime] = since
	}
	if !maps.Equal(s.Annotations, annotations) {
		s.Annotations, changed = annotations, true
	}
	return changed
}

func (r *reconciler) newSlice(ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    prefix(r.Name),
			Namespace:       r.Namespace,
			OwnerReferences: []metav1.OwnerReference{r.Reference},
		},
		AddressType: r.addressType,
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	r.setMetadata(s)
	return s
}

// prefix joins with a dash where the name stays valid.
func prefix(owner string) string {
	if len(owner)+1 <= 63-5 {
		return owner + "-"
	}
	return owner
}
