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

// policyBatch is how many roles and bindings are written in one transaction: etcd takes 128 by default.
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
			c.Log.Error("writing the roles and bindings of every cluster", "error", err)
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
		if errors.As(err, new(*storage.Damaged)) { // the store has logged it, and the others are not to wait for it
			return nil
		}
		if err != nil {
			return err
		}
		w, err := c.mend(ctx, res, have, obj)
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

// mend is the write that adds what a role or binding lacks, nil if it lacks nothing.
func (c *ControlPlane) mend(ctx context.Context, res *api.Resource, stored *storage.Object, want api.Object) (
	*storage.Write, error) {
	have, err := encoding.Decode(ctx, res, stored)
	if err != nil {
		return nil, err
	}
	mended, anew := authz.Reconcile(have, want)
	if mended == nil {
		return nil, nil
	}
	obj := mended.(api.Object)
	w := storage.Write{Op: storage.Update, Key: stored.Key, Expect: stored.Revision}
	if anew {
		fresh, err := c.Objects.Create(res, obj)
		w.Value = fresh.Value
		return &w, err
	}
	if w.Value, err = encoding.Encode(res, obj); err != nil {
		return nil, fmt.Errorf("adding what %s lacks: %w", stored.Key, err)
	}
	return &w, nil
}
