package aggregation

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api/discoverydocs"
	"github.com/coxswain-dev/coxswain/storage"
)

// maxServices limits the groups and versions that other servers may serve. Further APIServices are ignored.
const maxServices = 500

// set indexes the APIServices at one moment. It is immutable.
type set struct {
	services      map[schema.GroupVersion]*Service
	links         map[types.NamespacedName][]*link // by the Service that they connect to
	registrations *discoverydocs.Registrations
}

// Service is a group and version of the API that another server serves. It is immutable.
type Service struct {
	schema.GroupVersion
	// Name is the name of the APIService.
	Name string
	// Available reports whether the last check succeeded, by this server or another one.
	Available bool
	link      *link
}

// registered caches an APIService.
type registered struct {
	revision int64
	gv       schema.GroupVersion
	priority discoverydocs.Priority
	local    bool   // whether it names no service
	reason   string // of the condition Available
	// service is nil if this server serves the group and version itself.
	service *Service
}

// At returns the service for a path of the form /apis/GROUP/VERSION/.... It returns nil if this server serves the
// path.
func (a *Aggregation) At(path string) *Service {
	current := a.now()
	if current == nil || len(current.services) == 0 {
		return nil
	}
	rest, found := strings.CutPrefix(path, "/apis/")
	if !found {
		return nil
	}
	group, rest, found := strings.Cut(rest, "/")
	if !found {
		return nil
	}
	version, _, _ := strings.Cut(rest, "/")
	return current.services[schema.GroupVersion{Group: group, Version: version}]
}

// now returns the current set, or nil if it is empty.
func (a *Aggregation) now() *set {
	if a == nil {
		return nil
	}
	return a.current.Load()
}

// Registrations returns the changes that the APIServices make to discovery, or nil if there are none.
func (a *Aggregation) Registrations() *discoverydocs.Registrations {
	if current := a.now(); current != nil {
		return current.registrations
	}
	return nil
}

// plain reports whether e does not affect the set.
func (e *registered) plain() bool {
	return e == nil || e.service == nil && (e.gv.Version == "" || e.priority == discoverydocs.Usual(e.gv))
}

// follow updates the set from the APIServices until ctx ends.
func (a *Aggregation) follow(ctx context.Context) {
	for ctx.Err() == nil {
		revision, err := a.refresh(ctx)
		if err != nil {
			return // the store has closed
		}
		watcher, err := a.Objects.Collection(a.res).Watch(ctx, storage.WatchRequest{From: revision})
		for err == nil {
			var events []storage.Event
			if events, err = watcher.Next(ctx); err == nil {
				a.apply(ctx, events)
			}
		}
		if watcher != nil {
			watcher.Close()
		}
		if errors.Is(err, storage.ErrUnavailable) {
			return
		}
	}
}

// refresh rebuilds the set from the APIServices in memory, and returns their revision.
func (a *Aggregation) refresh(ctx context.Context) (int64, error) {
	list, err := a.Objects.Collection(a.res).List(ctx, storage.ListRequest{At: storage.At{Any: true}, Readable: true})
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	present := make(map[string]bool, len(list.Items))
	changed := false
	for _, o := range list.Items {
		present[o.Key.Name] = true
		changed = a.note(ctx, o.Key.Name, o) || changed
	}
	for name := range a.known {
		if !present[name] {
			changed = a.note(ctx, name, nil) || changed
		}
	}
	if changed {
		a.replace()
	}
	return list.Revision, nil
}

// apply applies the events of APIServices to the set.
func (a *Aggregation) apply(ctx context.Context, events []storage.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed := false
	for _, e := range events {
		switch e.Type {
		case storage.Bookmark:
		case storage.Deleted:
			changed = a.note(ctx, e.Object.Key.Name, nil) || changed
		default:
			changed = a.note(ctx, e.Object.Key.Name, e.Object) || changed
		}
	}
	if changed {
		a.replace()
	}
}

// note records the stored state of an APIService, or its deletion if o is nil. It reports whether the set must be
// replaced, and closes the previous link if it is no longer used. a.mu must be held.
func (a *Aggregation) note(ctx context.Context, name string, o *storage.Object) (changed bool) {
	before := a.known[name]
	var now *registered
	switch {
	case o == nil:
		delete(a.known, name)
	case before != nil && before.revision == o.Revision:
		return false
	default:
		now = a.read(ctx, o, before)
		a.known[name] = now
	}
	if before != nil && before.service != nil && (now == nil || now.service == nil ||
		now.service.link != before.service.link) {
		before.service.link.close()
		a.unavailable.forget(name)
	}
	return !before.plain() || !now.plain()
}

// read decodes a stored APIService. It reuses the link of the previous state before, which is nil for a new
// APIService, if the target is unchanged.
func (a *Aggregation) read(ctx context.Context, o *storage.Object, before *registered) *registered {
	s, err := a.decode(ctx, o)
	if err != nil {
		a.Log.Error("an APIService cannot be read", "name", o.Key.Name, "error", err)
		return &registered{revision: o.Revision}
	}
	e := &registered{revision: o.Revision, gv: schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version},
		priority: discoverydocs.Priority{Group: s.Spec.GroupPriorityMinimum, Version: s.Spec.VersionPriority},
		local:    s.Spec.Service == nil}
	if c := available(s); c != nil {
		e.reason = c.Reason
	}
	// This server always serves the core group and the group of APIService itself. Otherwise a wrong APIService
	// could block the requests that would repair it.
	if s.Spec.Service == nil || s.Spec.Group == "" || s.Spec.Group == apiregistrationv1.GroupName {
		return e
	}
	e.service = &Service{GroupVersion: e.gv, Name: s.Name, Available: isAvailable(s)}
	if target := targetOf(&s.Spec); before != nil && before.service != nil && before.service.link.target == target {
		e.service.link = before.service.link
		if e.service.Available && !before.service.Available {
			e.service.link.expire()
		}
	} else {
		e.service.link = a.newLink(e.gv, target, s.Spec.CABundle)
	}
	return e
}

func isAvailable(s *apiregistrationv1.APIService) bool {
	c := available(s)
	return c != nil && c.Status == apiregistrationv1.ConditionTrue
}

// available returns the condition Available, or nil if there is none.
func available(s *apiregistrationv1.APIService) *apiregistrationv1.APIServiceCondition {
	for i := range s.Status.Conditions {
		if c := &s.Status.Conditions[i]; c.Type == apiregistrationv1.Available {
			return c
		}
	}
	return nil
}

// setCondition sets the condition Available. It keeps the transition time if the status is unchanged.
func setCondition(s *apiregistrationv1.APIService, to apiregistrationv1.APIServiceCondition) {
	c := available(s)
	if c == nil {
		s.Status.Conditions = append(s.Status.Conditions, to)
		return
	}
	if c.Status == to.Status {
		to.LastTransitionTime = c.LastTransitionTime
	}
	*c = to
}

// replace builds the current set from the known APIServices. a.mu must be held.
func (a *Aggregation) replace() {
	now := setOf(a.known)
	if now != nil && len(now.services) > maxServices {
		a.Log.Error("not all APIServices are acted on: there are too many", "limit", maxServices)
		now.limit()
	}
	a.current.Store(now)
	if now == nil {
		a.merged.forget()
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// limit keeps the first maxServices services by name.
func (s *set) limit() {
	names := make([]string, 0, len(s.services))
	for _, service := range s.services {
		names = append(names, service.Name)
	}
	slices.Sort(names)
	for gv, service := range s.services {
		if service.Name >= names[maxServices] {
			delete(s.services, gv)
			delete(s.registrations.External, gv)
		}
	}
}

// setOf builds the set from the known APIServices. It returns nil if the set would be empty.
func setOf(known map[string]*registered) *set {
	s := &set{services: map[schema.GroupVersion]*Service{}, links: map[types.NamespacedName][]*link{}}
	r := &discoverydocs.Registrations{External: map[schema.GroupVersion]bool{},
		Priorities: map[schema.GroupVersion]discoverydocs.Priority{}}
	for _, e := range known {
		if e.service != nil {
			s.services[e.gv], r.External[e.gv] = e.service, true
			l := e.service.link
			key := types.NamespacedName{Namespace: l.target.namespace, Name: l.target.name}
			s.links[key] = append(s.links[key], l)
		}
		if !e.plain() {
			r.Priorities[e.gv] = e.priority
		}
	}
	if len(s.services)+len(r.Priorities) == 0 {
		return nil
	}
	s.registrations = r
	return s
}

// close ends background work and closes all connections.
func (a *Aggregation) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end()
	for _, e := range a.known {
		if e.service != nil {
			e.service.link.close()
		}
	}
}
