package apiserver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

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
	// taking says that somebody is taking over what watchers have told him, and tell no more.
	taking atomic.Bool
}

type policyWatcher struct {
	res *api.Resource
	// watcher is replaced when it falls behind.
	watcher atomic.Pointer[storage.Watcher]
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
		if err := w.open(ctx, s); err != nil {
			return nil, err
		}
		p.watchers = append(p.watchers, w)
	}
	p.take(ctx)
	return p, nil
}

func (w *policyWatcher) open(ctx context.Context, s *Server) error {
	watcher, err := s.collection(w.res).Watch(ctx, storage.WatchRequest{Any: true})
	if err == nil {
		w.watcher.Store(watcher)
	}
	return err
}

// refresh takes over what is new. Who comes while another does so waits for him: what he has been told
// of, but not filed yet, must count here too.
func (p *policy) refresh() {
	news := false
	for _, w := range p.watchers {
		news = news || w.watcher.Load().Woken()
	}
	if news || p.taking.Load() { // in this order
		p.take(context.Background())
	}
}

func (p *policy) take(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taking.Store(true)
	defer p.taking.Store(false)
	p.rbac.Change(func(c authz.Changes) {
		for _, w := range p.watchers {
			if err := p.takeFrom(ctx, w, c); err != nil {
				p.lost(ctx, w, c, err)
			}
		}
	})
}

func (p *policy) takeFrom(ctx context.Context, w *policyWatcher, c authz.Changes) error {
	for {
		events, err := w.watcher.Load().Poll(ctx)
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			p.apply(c, w.res, &events[i])
		}
	}
}

func (p *policy) apply(c authz.Changes, res *api.Resource, e *storage.Event) {
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
		c.DeleteBinding(namespace, name)
	case gone:
		c.DeleteRole(namespace, name)
	}
	switch o := obj.(type) {
	case *rbacv1.ClusterRole:
		c.PutRole("", name, o.Rules)
	case *rbacv1.Role:
		c.PutRole(namespace, name, o.Rules)
	case *rbacv1.ClusterRoleBinding:
		c.PutBinding("", name, o.RoleRef, o.Subjects)
	case *rbacv1.RoleBinding:
		c.PutBinding(namespace, name, o.RoleRef, o.Subjects)
	}
}

// lost begins a kind anew, whose changes came faster than decisions or whose log was lost.
func (p *policy) lost(ctx context.Context, w *policyWatcher, c authz.Changes, cause error) {
	if errors.Is(cause, storage.ErrUnavailable) { // the store has closed
		return
	}
	p.server.Log.Warn("reading roles and bindings anew", "kind", w.res.Kind, "error", cause)
	switch w.res.Kind {
	case "ClusterRole":
		c.Forget(false, true)
	case "ClusterRoleBinding":
		c.Forget(true, true)
	case "Role":
		c.Forget(false, false)
	case "RoleBinding":
		c.Forget(true, false)
	}
	old := w.watcher.Load()
	err := w.open(ctx, p.server)
	old.Close()
	if err == nil {
		err = p.takeFrom(ctx, w, c)
	}
	if err != nil {
		p.server.Log.Error("reading roles and bindings", "kind", w.res.Kind, "error", err)
	}
}
