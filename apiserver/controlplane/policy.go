package controlplane

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// policyBatch is the number of roles and bindings that are written in one transaction: etcd's default limit is 128.
const policyBatch = 100

// writePolicy stores the roles and bindings that every cluster has and this one lacks.
func (c *ControlPlane) writePolicy(ctx context.Context) {
	defer close(c.policyWritten)
	for {
		err := c.reconcilePolicy(ctx)
		var conflict *storage.Conflict
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, storage.ErrExists) || errors.As(err, &conflict) || errors.Is(err, storage.ErrNotFound):
			// Another server writes the same, or a user changes them.
			_, _ = c.Store.Revision(ctx)
		default:
			c.Log.Error("cannot write the roles and bindings of every cluster", "err", err)
			return
		}
	}
}

func (c *ControlPlane) reconcilePolicy(ctx context.Context) error {
	writes, err := c.policyWrites(ctx)
	if err != nil {
		return err
	}
	for len(writes) > 0 {
		n := min(len(writes), policyBatch)
		if _, err := c.Objects.Commit(ctx, writes[:n]...); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

func (c *ControlPlane) policyWrites(ctx context.Context) ([]storage.Write, error) {
	var writes []storage.Write
	want := authz.Bootstrap()
	add := func(kind string, obj api.Object) error {
		res := c.Registry.Snapshot().Kind(rbacv1.SchemeGroupVersion.WithKind(kind))
		if res == nil {
			return nil
		}
		have, err := c.Objects.Collection(res).Get(ctx, obj.GetNamespace(), obj.GetName(), storage.At{Any: true})
		if errors.Is(err, storage.ErrNotFound) {
			w, err := c.Objects.Create(res, obj.DeepCopyObject().(api.Object))
			writes = append(writes, w)
			return err
		}
		if errors.As(err, new(*storage.Damaged)) { // the store has logged it; the others must not wait
			return nil
		}
		if err != nil {
			return err
		}
		w, err := c.repair(ctx, res, have, obj)
		if w != nil {
			writes = append(writes, *w)
		}
		return err
	}
	var errs []error
	for _, r := range want.ClusterRoles {
		errs = append(errs, add("ClusterRole", r))
	}
	for _, b := range want.ClusterRoleBindings {
		errs = append(errs, add("ClusterRoleBinding", b))
	}
	for _, r := range want.Roles {
		errs = append(errs, add("Role", r))
	}
	for _, b := range want.RoleBindings {
		errs = append(errs, add("RoleBinding", b))
	}
	return writes, errors.Join(errs...)
}

// repair returns the write that adds missing rules or subjects to a role or binding, nil if it is complete.
func (c *ControlPlane) repair(ctx context.Context, res *api.Resource, stored *storage.Object, want api.Object) (
	*storage.Write, error) {
	have, err := encoding.Decode(ctx, res, stored)
	if err != nil {
		return nil, err
	}
	repaired, recreate := authz.Reconcile(have, want)
	if repaired == nil {
		return nil, nil
	}
	obj := repaired.(api.Object)
	w := storage.Write{Op: storage.Update, Key: stored.Key, Expect: stored.Revision}
	if recreate {
		fresh, err := c.Objects.Create(res, obj)
		w.Value = fresh.Value
		return &w, err
	}
	if w.Value, err = encoding.Encode(res, obj); err != nil {
		return nil, fmt.Errorf("complete %s: %w", stored.Key, err)
	}
	return &w, nil
}
