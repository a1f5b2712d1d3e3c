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
// It is an index from a subject (within a namespace, or the cluster) to the rules of the roles it is bound to. A
// decision costs one lookup for the user and one for each group, independently of the number of bindings. Roles and
// bindings are put and deleted one at a time; Refresh, if not nil, is called before every decision to do so. It is
// safe for concurrent use.
type RBAC struct {
	// Refresh updates the index from the store of roles and bindings. It must be cheap if there are no changes.
	Refresh func()

	mu    sync.RWMutex
	roles map[roleKey]*role
	// bindings remember the subjects under which they are indexed.
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

// role holds the rules of a role. It exists as long as there is such a role or a binding refers to it.
type role struct {
	rules *rules // nil if there is no such role
	users int    // the number of bindings that refer to it
}

type binding struct {
	name     roleKey
	role     *role
	ref      roleKey
	subjects []rbacv1.Subject
	filed    []subject // the subjects in the index, without duplicates
	// reasons holds for each subject in filed the reason of an Allow, made when it is first needed.
	reasons []atomic.Pointer[string]
}

// party is one subject of a binding: filed[index].
type party struct {
	*binding
	index int
}

// NewRBAC returns an empty index.
func NewRBAC() *RBAC {
	return &RBAC{roles: map[roleKey]*role{}, bindings: map[roleKey]*binding{}, bound: map[subject][]party{}}
}

// Changes gives access to an index while no decisions are made.
type Changes struct{ r *RBAC }

// Change calls f. Its changes are one step for concurrent decisions, which wait for it.
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

// PutRole makes one change with Changes.PutRole.
func (r *RBAC) PutRole(namespace, name string, list []rbacv1.PolicyRule) {
	r.Change(func(c Changes) { c.PutRole(namespace, name, list) })
}

// DeleteRole removes a Role or ClusterRole.
func (c Changes) DeleteRole(namespace, name string) {
	key := roleKey{namespace, name}
	if existing := c.r.roles[key]; existing != nil {
		existing.rules = nil
		c.r.dropUnused(key)
	}
}

// DeleteRole makes one change with Changes.DeleteRole.
func (r *RBAC) DeleteRole(namespace, name string) {
	r.Change(func(c Changes) { c.DeleteRole(namespace, name) })
}

func (r *RBAC) role(key roleKey) *role {
	existing := r.roles[key]
	if existing == nil {
		existing = &role{}
		r.roles[key] = existing
	}
	return existing
}

func (r *RBAC) dropUnused(key roleKey) {
	if existing := r.roles[key]; existing != nil && existing.rules == nil && existing.users == 0 {
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
		indexed, ok := subjectOf(&subjects[i], namespace)
		parties := r.bound[indexed]
		if !ok || len(parties) > 0 && parties[len(parties)-1].binding == b {
			continue
		}
		r.bound[indexed] = append(parties, party{b, len(b.filed)})
		b.filed = append(b.filed, indexed)
	}
	b.reasons = make([]atomic.Pointer[string], len(b.filed))
	r.bindings[key] = b
}

// PutBinding makes one change with Changes.PutBinding.
func (r *RBAC) PutBinding(namespace, name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	r.Change(func(c Changes) { c.PutBinding(namespace, name, ref, subjects) })
}

// DeleteBinding removes a RoleBinding or ClusterRoleBinding.
func (c Changes) DeleteBinding(namespace, name string) { c.r.takeBinding(roleKey{namespace, name}) }

// DeleteBinding makes one change with Changes.DeleteBinding.
func (r *RBAC) DeleteBinding(namespace, name string) {
	r.Change(func(c Changes) { c.DeleteBinding(namespace, name) })
}

func (r *RBAC) takeBinding(key roleKey) {
	b := r.bindings[key]
	if b == nil {
		return
	}
	delete(r.bindings, key)
	for _, indexed := range b.filed {
		rest := slices.DeleteFunc(r.bound[indexed], func(p party) bool { return p.binding == b })
		if len(rest) == 0 {
			delete(r.bound, indexed)
		} else {
			r.bound[indexed] = rest
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
	for key, existing := range r.roles {
		if (key.namespace == "") == cluster {
			existing.rules = nil
			r.dropUnused(key)
		}
	}
}

// subjectOf returns the index key of a subject of a binding in a namespace.
func subjectOf(s *rbacv1.Subject, namespace string) (key subject, ok bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{namespace: namespace, name: s.Name}, true
	case rbacv1.GroupKind:
		return subject{namespace: namespace, name: s.Name, group: true}, true
	case rbacv1.ServiceAccountKind:
		account := s.Namespace
		if account == "" {
			account = namespace
		}
		return subject{namespace: namespace, name: "system:serviceaccount:" + account + ":" + s.Name}, account != ""
	}
	return key, false
}

// Authorize implements Authorizer. If it allows a request, the reason names a binding that grants it.
func (r *RBAC) Authorize(_ context.Context, a *Attributes) (Decision, string, error) {
	if r.Refresh != nil {
		r.Refresh()
	}
	q := newQuery(a)
	r.mu.RLock()
	defer r.mu.RUnlock()
	granting, ok := r.allows(a.User, "", &q)
	if !ok && a.Namespace != "" {
		granting, ok = r.allows(a.User, a.Namespace, &q)
	}
	if ok {
		return Allow, granting.reason(), nil
	}
	return NoOpinion, r.missing(a), nil
}

// allows returns the first party that allows a request, among the bindings of one namespace or, with "", of the
// cluster.
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

// missing describes the roles that the user is bound to and that do not exist.
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

// eachBinding calls f for the bindings of the user in the cluster and the namespace, if one is given. It may call f
// several times for a binding that names the user several times.
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

// RulesFor implements Lister, with the rules of each role once. The error names missing roles that bindings refer
// to.
func (r *RBAC) RulesFor(user *authn.User, namespace string) (list []rbacv1.PolicyRule, incomplete bool, err error) {
	if r.Refresh != nil {
		r.Refresh()
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var missing []string
	seen := map[*role]bool{} // independently of the number of bindings to it
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

// reason returns the reason why a request of the subject is allowed.
func (p party) reason() string {
	cached := &p.reasons[p.index]
	if text := cached.Load(); text != nil {
		return *text
	}
	text := p.describe(p.filed[p.index])
	cached.Store(&text)
	return text
}

// describe names the binding, its role and one of its subjects.
func (b *binding) describe(target subject) string {
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
		if key, _ := subjectOf(&s, b.name.namespace); key != target {
			continue
		}
		if s.Kind == rbacv1.ServiceAccountKind {
			return text + fmt.Sprintf("%s %q", s.Kind, s.Name+"/"+strings.Split(target.name, ":")[2])
		}
		return text + fmt.Sprintf("%s %q", s.Kind, s.Name)
	}
	return text
}

// RoleRules returns the rules of a role that a binding in the namespace refers to; ok is false if there is none.
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
	existing := r.roles[key]
	if existing == nil || existing.rules == nil {
		return nil, false
	}
	return existing.rules.list, true
}
