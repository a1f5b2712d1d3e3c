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

// RBAC returns an index of roles and bindings that is in step with the store. It begins with the ones that every
// cluster has, so that they hold before they are written, and adds the stored ones.
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
	p.apply(ctx)
	return p.rbac, nil
}

// policy keeps the index of roles and bindings in step with the store. It has no goroutine: before a
// decision it applies the changes since the last one. Mostly there are none, and then it takes no lock.
type policy struct {
	rbac    *authz.RBAC
	objects loopback.Client
	log     *slog.Logger

	mu       sync.Mutex       // held to apply changes: its owner is the owner of the watchers
	watchers []*policyWatcher // fixed; each for one kind
	// applying is set while a caller applies changes: Woken no longer reports changes that the caller has received and
	// not applied yet.
	applying atomic.Bool
}

type policyWatcher struct {
	res *api.Resource
	// watcher is replaced when it falls behind. refresh loads it without the lock, and calls Woken only.
	watcher atomic.Pointer[storage.Watcher]
}

func (p *policy) open(ctx context.Context, w *policyWatcher) error {
	watcher, err := p.objects.Collection(w.res).Watch(ctx, storage.WatchRequest{Any: true})
	if err == nil {
		w.watcher.Store(watcher)
	}
	return err
}

// refresh applies the changes. A caller that comes while another applies changes waits for it: changes that the other
// has received but not applied yet must count here too.
//
// The order of the two checks matters. apply sets applying before it makes Woken false. So a change is visible here as
// Woken, or as applying, or it is in the index already.
func (p *policy) refresh() {
	changed := false
	for _, w := range p.watchers {
		changed = changed || w.watcher.Load().Woken()
	}
	if changed || p.applying.Load() {
		p.apply(context.Background())
	}
}

// apply applies all changes that the watchers have.
func (p *policy) apply(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applying.Store(true)
	defer p.applying.Store(false)
	p.rbac.Change(func(c authz.Changes) {
		for _, w := range p.watchers {
			if err := p.applyFrom(ctx, w, c); err != nil {
				p.restart(ctx, w, c, err)
			}
		}
	})
}

func (p *policy) applyFrom(ctx context.Context, w *policyWatcher, c authz.Changes) error {
	for {
		events, err := w.watcher.Load().Poll()
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			p.applyEvent(ctx, c, w.res, &events[i])
		}
	}
}

func (p *policy) applyEvent(ctx context.Context, c authz.Changes, res *api.Resource, e *storage.Event) {
	namespace, name := e.Object.Key.Namespace, e.Object.Key.Name
	deleted := e.Type == storage.Deleted
	var obj api.Object
	if !deleted {
		var err error
		if obj, err = encoding.Decode(ctx, res, e.Object); err != nil {
			p.log.Error("cannot decode a role or binding: it grants no rights", "object", e.Object.Key.String(),
				"err", err)
			deleted = true
		}
	}
	isBinding := res.Kind == "ClusterRoleBinding" || res.Kind == "RoleBinding"
	switch {
	case deleted && isBinding:
		c.DeleteBinding(namespace, name)
	case deleted:
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

// restart reads a kind again from the store, after its changes came faster than decisions or its log was lost.
func (p *policy) restart(ctx context.Context, w *policyWatcher, c authz.Changes, cause error) {
	if errors.Is(cause, storage.ErrUnavailable) { // the store has closed
		return
	}
	p.log.Warn("lost changes of roles and bindings, reading them again", "kind", w.res.Kind, "err", cause)
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
		err = p.applyFrom(ctx, w, c)
	}
	if err != nil {
		p.log.Error("cannot read roles and bindings", "kind", w.res.Kind, "err", err)
	}
}
