package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// RBAC allows requests by the roles that bindings grant to their subjects.
// https://kubernetes.io/docs/reference/access-authn-authz/rbac/
//
// It is an index: from a subject (within a namespace, or the cluster) to the rules of the roles it is
// bound to. A decision costs one lookup for the user and one for each group, however many bindings
// there are. Roles and bindings are put and deleted one at a time; Refresh, if not nil, is called
// before every decision to do so. It is safe for concurrent use.
type RBAC struct {
	// Refresh updates the index from the store of roles and bindings. It must be cheap when nothing has
	// changed.
	Refresh func()

	mu    sync.RWMutex
	roles map[roleKey]*role
	// bindings hold the subjects under which each is indexed.
	bindings map[roleKey]*binding
	bound    map[subject][]party
}

// roleKey names a role or a binding; a ClusterRole's or ClusterRoleBinding's namespace is "".
type roleKey struct{ namespace, name string }

// subject is a user or a group, and a namespace: "" is the whole cluster. A ServiceAccount is the user
// that it authenticates as.
type subject struct {
	namespace, name string
	group           bool
}

// role holds the rules of a role: bindings refer to it whether the role exists or not.
type role struct {
	rules *rules // nil while there is no such role
	users int    // how many bindings refer to it
}

type binding struct {
	name     roleKey
	role     *role
	ref      roleKey
	subjects []rbacv1.Subject
	filed    []subject // the subjects in the index, each once
	// reasons are why requests of a subject in filed are allowed: each made when it is first needed.
	reasons []atomic.Pointer[string]
}

// party is one of the subjects of a binding, filed[at].
type party struct {
	*binding
	at int
}

// NewRBAC returns an empty index.
func NewRBAC() *RBAC {
	return &RBAC{roles: map[roleKey]*role{}, bindings: map[roleKey]*binding{}, bound: map[subject][]party{}}
}

// Changes is access to an index while no decisions are made.
type Changes struct{ r *RBAC }

// Change calls f, whose changes are one step for concurrent decisions: they wait.
func (r *RBAC) Change(f func(Changes)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(Changes{r})
}

// PutRole adds or replaces a Role or, with an empty namespace, a ClusterRole. The rules must not be
// changed afterwards.
func (c Changes) PutRole(namespace, name string, list []rbacv1.PolicyRule) {
	c.r.role(roleKey{namespace, name}).rules = arrange(list)
}

// PutRole is Changes.PutRole in a change of its own.
func (r *RBAC) PutRole(namespace, name string, list []rbacv1.PolicyRule) {
	r.Change(func(c Changes) { c.PutRole(namespace, name, list) })
}

// DeleteRole removes a Role or ClusterRole.
func (c Changes) DeleteRole(namespace, name string) {
	key := roleKey{namespace, name}
	if known := c.r.roles[key]; known != nil {
		known.rules = nil
		c.r.dropUnused(key)
	}
}

// DeleteRole is Changes.DeleteRole in a change of its own.
func (r *RBAC) DeleteRole(namespace, name string) {
	r.Change(func(c Changes) { c.DeleteRole(namespace, name) })
}

func (r *RBAC) role(key roleKey) *role {
	known := r.roles[key]
	if known == nil {
		known = &role{}
		r.roles[key] = known
	}
	return known
}

func (r *RBAC) dropUnused(key roleKey) {
	if known := r.roles[key]; known != nil && known.rules == nil && known.users == 0 {
		delete(r.roles, key)
	}
}

// PutBinding adds or replaces a RoleBinding or, with an empty namespace, a ClusterRoleBinding.
func (c Changes) PutBinding(namespace, name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	r := c.r
	key := roleKey{namespace, name}
	r.takeBinding(key)
	b := &binding{name: key, ref: roleKey{name: ref.Name}, subjects: subjects}
	if ref.Kind == "Role" {
		b.ref.namespace = namespace
	}
	b.role = r.role(b.ref)
	b.role.users++
	for i := range subjects {
		at, ok := subjectOf(&subjects[i], namespace)
		known := r.bound[at]
		if !ok || len(known) > 0 && known[len(known)-1].binding == b {
			continue
		}
		r.bound[at] = append(known, party{b, len(b.filed)})
		b.filed = append(b.filed, at)
	}
	b.reasons = make([]atomic.Pointer[string], len(b.filed))
	r.bindings[key] = b
}

// PutBinding is Changes.PutBinding in a change of its own.
func (r *RBAC) PutBinding(namespace, name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	r.Change(func(c Changes) { c.PutBinding(namespace, name, ref, subjects) })
}

// DeleteBinding removes a RoleBinding or ClusterRoleBinding.
func (c Changes) DeleteBinding(namespace, name string) { c.r.takeBinding(roleKey{namespace, name}) }

// DeleteBinding is Changes.DeleteBinding in a change of its own.
func (r *RBAC) DeleteBinding(namespace, name string) {
	r.Change(func(c Changes) { c.DeleteBinding(namespace, name) })
}

func (r *RBAC) takeBinding(key roleKey) {
	b := r.bindings[key]
	if b == nil {
		return
	}
	delete(r.bindings, key)
	for _, at := range b.filed {
		rest := slices.DeleteFunc(r.bound[at], func(p party) bool { return p.binding == b })
		if len(rest) == 0 {
			delete(r.bound, at)
		} else {
			r.bound[at] = rest
		}
	}
	b.role.users--
	r.dropUnused(b.ref)
}

// Forget removes all roles or all bindings, of the cluster or of namespaces.
func (c Changes) Forget(bindings, cluster bool) {
	r := c.r
	if bindings {
		for key := range r.bindings {
			if (key.namespace == "") == cluster {
				r.takeBinding(key)
			}
		}
		return
	}
	for key, known := range r.roles {
		if (key.namespace == "") == cluster {
			known.rules = nil
			r.dropUnused(key)
		}
	}
}

// subjectOf returns the index key of a subject of a binding in a namespace.
func subjectOf(s *rbacv1.Subject, namespace string) (at subject, ok bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{namespace: namespace, name: s.Name}, true
	case rbacv1.GroupKind:
		return subject{namespace: namespace, name: s.Name, group: true}, true
	case rbacv1.ServiceAccountKind:
		of := s.Namespace
		if of == "" {
			of = namespace
		}
		return subject{namespace: namespace, name: "system:serviceaccount:" + of + ":" + s.Name}, of != ""
	}
	return at, false
}

// Authorize implements Authorizer. Where it allows, the reason names a binding that grants it.
func (r *RBAC) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if r.Refresh != nil {
		r.Refresh()
	}
	q := newQuery(a)
	r.mu.RLock()
	defer r.mu.RUnlock()
	by, ok := r.allows(a.User, "", &q)
	if !ok && a.Namespace != "" {
		by, ok = r.allows(a.User, a.Namespace, &q)
	}
	if ok {
		return Allow, by.reason(), nil
	}
	return NoOpinion, r.missing(a), nil
}

// allows returns the first party to the bindings of one namespace or, with "", of the cluster by which a request is
// allowed.
func (r *RBAC) allows(user *authn.User, namespace string, q *query) (party, bool) {
	for _, p := range r.bound[subject{namespace: namespace, name: user.Name}] {
		if p.role.rules != nil && p.role.rules.allow(q) {
			return p, true
		}
	}
	for _, group := range user.Groups {
		for _, p := range r.bound[subject{namespace: namespace, name: group, group: true}] {
			if p.role.rules != nil && p.role.rules.allow(q) {
				return p, true
			}
		}
	}
	return party{}, false
}

// missing reports the missing roles that the user is bound to.
func (r *RBAC) missing(a *Attributes) string {
	var errs []string
	r.eachBinding(a.User, a.Namespace, func(b *binding) {
		if b.role.rules == nil {
			errs = append(errs, b.ref.notFound())
		}
	})
	if len(errs) == 0 {
		return ""
	}
	slices.Sort(errs)
	return fmt.Sprintf("RBAC: %s", aggregate(slices.Compact(errs)))
}

func (k roleKey) notFound() string {
	if k.namespace == "" {
		return fmt.Sprintf("clusterrole.rbac.authorization.k8s.io %q not found", k.name)
	}
	return fmt.Sprintf("role.rbac.authorization.k8s.io %q not found", k.name)
}

// aggregate formats several errors as Kubernetes does.
func aggregate(errs []string) string {
	if len(errs) == 1 {
		return errs[0]
	}
	text := "["
	for i, err := range errs {
		if i > 0 {
			text += ", "
		}
		text += err
	}
	return text + "]"
}

// eachBinding calls f for the bindings of the user in the cluster and the namespace, if one is given;
// more than once for one that names the user more than once.
func (r *RBAC) eachBinding(user *authn.User, namespace string, f func(*binding)) {
	scopes := []string{""}
	if namespace != "" {
		scopes = append(scopes, namespace)
	}
	for _, scope := range scopes {
		for _, p := range r.bound[subject{namespace: scope, name: user.Name}] {
			f(p.binding)
		}
		for _, group := range user.Groups {
			for _, p := range r.bound[subject{namespace: scope, name: group, group: true}] {
				f(p.binding)
			}
		}
	}
}

// RulesFor implements Lister, with the rules of each role once. The error names missing roles that bindings refer to.
func (r *RBAC) RulesFor(user *authn.User, namespace string) (list []rbacv1.PolicyRule, incomplete bool, err error) {
	if r.Refresh != nil {
		r.Refresh()
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var missing []string
	seen := map[*role]bool{} // however many bindings there are to it
	r.eachBinding(user, namespace, func(b *binding) {
		switch {
		case seen[b.role]:
			return
		case b.role.rules == nil:
			missing = append(missing, b.ref.notFound())
			return
		}
		seen[b.role] = true
		list = append(list, b.role.rules.list...)
	})
	if len(missing) > 0 {
		slices.Sort(missing)
		err = errors.New(aggregate(slices.Compact(missing)))
	}
	return list, false, err
}

// reason says why a request of the subject is allowed.
func (p party) reason() string {
	kept := &p.reasons[p.at]
	if text := kept.Load(); text != nil {
		return *text
	}
	text := p.describe(p.filed[p.at])
	kept.Store(&text)
	return text
}

// describe names the binding, its role and one of its subjects.
func (b *binding) describe(of subject) string {
	kind, name := "ClusterRoleBinding", b.name.name
	if b.name.namespace != "" {
		kind, name = "RoleBinding", b.name.name+"/"+b.name.namespace
	}
	role := "ClusterRole"
	if b.ref.namespace != "" {
		role = "Role"
	}
	text := fmt.Sprintf("RBAC: allowed by %s %q of %s %q to ", kind, name, role, b.ref.name)
	for _, s := range b.subjects {
		if at, _ := subjectOf(&s, b.name.namespace); at != of {
			continue
		}
		if s.Kind == rbacv1.ServiceAccountKind {
			return text + fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+strings.Split(of.name, ":")[2])
		}
		return text + fmt.Sprintf("%s %q", s.Kind, s.Name)
	}
	return text
}

// RoleRules returns the rules of a role that a binding in the namespace refers to; ok is false if there
// is none.
func (r *RBAC) RoleRules(namespace string, ref rbacv1.RoleRef) (list []rbacv1.PolicyRule, ok bool) {
	if r.Refresh != nil {
		r.Refresh()
	}
	key := roleKey{name: ref.Name}
	if ref.Kind == "Role" {
		key.namespace = namespace
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	known := r.roles[key]
	if known == nil || known.rules == nil {
		return nil, false
	}
	return known.rules.list, true
}
