package apiserver

import (
	"context"
	"errors"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/storage"
)

// policy keeps the index of roles and bindings in step with the store. It has no goroutine: before a
// decision it takes over what has changed since the last one, which mostly is nothing.
type policy struct {
	server *Server
	rbac   *authz.RBAC
	used   bool // RBAC is among the modes

	mu       sync.Mutex
	watchers []*policyWatcher // fixed; each for one kind
}

type policyWatcher struct {
	*storage.Watcher
	res *api.Resource
}

// newPolicy begins with the roles and bindings that every cluster has, so that they hold before they
// are written, and goes on with those that are stored.
func newPolicy(ctx context.Context, s *Server) (*policy, error) {
	p := &policy{server: s, rbac: authz.NewRBAC()}
	p.rbac.Refresh = p.refresh
	builtin := authz.Bootstrap()
	for _, r := range builtin.ClusterRoles {
		p.rbac.PutRole("", r.Name, r.Rules)
	}
	for _, b := range builtin.ClusterRoleBindings {
		p.rbac.PutBinding("", b.Name, b.RoleRef, b.Subjects)
	}
	for _, r := range builtin.Roles {
		p.rbac.PutRole(r.Namespace, r.Name, r.Rules)
	}
	for _, b := range builtin.RoleBindings {
		p.rbac.PutBinding(b.Namespace, b.Name, b.RoleRef, b.Subjects)
	}
	kinds := s.Registry.Snapshot()
	for _, kind := range []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} {
		res := kinds.Kind(rbacv1.SchemeGroupVersion.WithKind(kind))
		if res == nil {
			continue
		}
		w := &policyWatcher{res: res}
		if err := p.open(ctx, w); err != nil {
			return nil, err
		}
		p.watchers = append(p.watchers, w)
	}
	p.take(ctx)
	return p, nil
}

func (p *policy) open(ctx context.Context, w *policyWatcher) error {
	var err error
	w.Watcher, err = p.server.collection(w.res).Watch(ctx, storage.WatchRequest{Any: true})
	return err
}

// refresh takes over what is new.
func (p *policy) refresh() {
	for _, w := range p.watchers {
		if w.Woken() {
			p.take(context.Background())
			return
		}
	}
}

func (p *policy) take(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.watchers {
		for {
			events, err := w.Poll(ctx)
			if err != nil {
				p.lost(ctx, w, err)
				break
			}
			if len(events) == 0 {
				break
			}
			for i := range events {
				p.apply(w.res, &events[i])
			}
		}
	}
}

func (p *policy) apply(res *api.Resource, e *storage.Event) {
	namespace, name := e.Object.Key.Namespace, e.Object.Key.Name
	gone := e.Type == storage.Deleted
	var obj api.Object
	if !gone {
		var err error
		if obj, err = decode(res, e.Object); err != nil {
			p.server.Log.Error("a role or binding grants nothing", "object", e.Object.Key.String(), "error", err)
			gone = true
		}
	}
	isBinding := res.Kind == "ClusterRoleBinding" || res.Kind == "RoleBinding"
	switch {
	case gone && isBinding:
		p.rbac.DeleteBinding(namespace, name)
	case gone:
		p.rbac.DeleteRole(namespace, name)
	}
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		p.rbac.PutRole("", name, o.Rules)
	case *rbacv1.Role:
		p.rbac.PutRole(namespace, name, o.Rules)
	case *rbacv1.ClusterRoleBinding:
		p.rbac.PutBinding("", name, o.RoleRef, o.Subjects)
	case *rbacv1.RoleBinding:
		p.rbac.PutBinding(namespace, name, o.RoleRef, o.Subjects)
	}
}

// lost begins a kind anew, whose changes came faster than decisions or whose log was lost. Until
// then what it granted is not granted any more.
func (p *policy) lost(ctx context.Context, w *policyWatcher, cause error) {
	if errors.Is(cause, storage.ErrUnavailable) { // the store has closed
		return
	}
	p.server.Log.Warn("reading roles and bindings anew", "kind", w.res.Kind, "error", cause)
	switch w.res.Kind {
	case "ClusterRole":
		p.rbac.Forget(false, true)
	case "ClusterRoleBinding":
		p.rbac.Forget(true, true)
	case "Role":
		p.rbac.Forget(false, false)
	case "RoleBinding":
		p.rbac.Forget(true, false)
	}
	w.Close()
	if err := p.open(ctx, w); err != nil {
		p.server.Log.Error("reading roles and bindings", "kind", w.res.Kind, "error", err)
		return
	}
	for {
		events, err := w.Poll(ctx)
		if err != nil || len(events) == 0 {
			return
		}
		for i := range events {
			p.apply(w.res, &events[i])
		}
	}
}
