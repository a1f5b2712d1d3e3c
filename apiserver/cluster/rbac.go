package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
)

// RBAC returns an index of roles and bindings that is in step with the store. It begins with those that every cluster
// has, so that they hold before they are written, and goes on with those that are stored.
func (c *Cluster) RBAC(ctx context.Context) (*authz.RBAC, error) {
	p := &policy{rbac: authz.NewRBAC(), objects: c.Objects, log: c.Log}
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
	for _, kind := range []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} {
		res := c.Served(rbacv1.SchemeGroupVersion.WithKind(kind))
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
	return p.rbac, nil
}

// policy keeps the index of roles and bindings in step with the store. It has no goroutine: before a
// decision it takes over the changes since the last one, of which there mostly are none.
type policy struct {
	rbac    *authz.RBAC
	objects loopback.Client
	log     *slog.Logger

	mu       sync.Mutex
	watchers []*policyWatcher // fixed; each for one kind
	// taking reports that one caller is taking over the changes that the watchers no longer report.
	taking atomic.Bool
}

type policyWatcher struct {
	res *api.Resource
	// watcher is replaced when it falls behind.
	watcher atomic.Pointer[storage.Watcher]
}

func (p *policy) open(ctx context.Context, w *policyWatcher) error {
	watcher, err := p.objects.Collection(w.res).Watch(ctx, storage.WatchRequest{Any: true})
	if err == nil {
		w.watcher.Store(watcher)
	}
	return err
}

// refresh takes over the changes. A caller that comes while another does so waits for it: the changes that the other
// has received but not taken over yet must count here too.
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
		events, err := w.watcher.Load().Poll()
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			p.apply(ctx, c, w.res, &events[i])
		}
	}
}

func (p *policy) apply(ctx context.Context, c authz.Changes, res *api.Resource, e *storage.Event) {
	namespace, name := e.Object.Key.Namespace, e.Object.Key.Name
	gone := e.Type == storage.Deleted
	var obj api.Object
	if !gone {
		var err error
		if obj, err = encoding.Decode(ctx, res, e.Object); err != nil {
			p.log.Error("a role or binding grants nothing", "object", e.Object.Key.String(), "error", err)
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
	p.log.Warn("reading roles and bindings anew", "kind", w.res.Kind, "error", cause)
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
	err := p.open(ctx, w)
	old.Close()
	if err == nil {
		err = p.takeFrom(ctx, w, c)
	}
	if err != nil {
		p.log.Error("reading roles and bindings", "kind", w.res.Kind, "error", err)
	}
}
