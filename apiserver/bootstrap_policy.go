package apiserver

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/storage"
)

// policyBatch is how many roles and bindings are written in one transaction: etcd takes 128 by default.
const policyBatch = 100

// PolicyWritten is closed when the roles and bindings that every cluster has are stored. They hold
// before: Serve writes them while it serves.
func (s *Server) PolicyWritten() <-chan struct{} { return s.written }

// writePolicy stores what the cluster lacks of the policy that every cluster has.
func (s *Server) writePolicy(ctx context.Context) {
	defer close(s.written)
	for {
		err := s.reconcilePolicy(ctx)
		var conflict *storage.Conflict
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.Is(err, storage.ErrExists) || errors.As(err, &conflict) || errors.Is(err, storage.ErrNotFound):
			// Another server does the same, or someone changes them.
			_, _ = s.Store.Revision(ctx)
		default:
			s.Log.Error("writing the roles and bindings of every cluster", "error", err)
			return
		}
	}
}

func (s *Server) reconcilePolicy(ctx context.Context) error {
	writes, err := s.policyWrites(ctx)
	if err != nil {
		return err
	}
	for len(writes) > 0 {
		n := min(len(writes), policyBatch)
		if _, err := s.Store.Commit(ctx, writes[:n]...); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

func (s *Server) policyWrites(ctx context.Context) ([]storage.Write, error) {
	var writes []storage.Write
	want := authz.Bootstrap()
	add := func(kind string, obj api.Object) error {
		res := s.Registry.Snapshot().Kind(rbacv1.SchemeGroupVersion.WithKind(kind))
		if res == nil {
			return nil
		}
		have, err := s.collection(res).Get(ctx, obj.GetNamespace(), obj.GetName(), storage.At{Any: true})
		if errors.Is(err, storage.ErrNotFound) {
			w, err := s.firstWrite(res, obj.DeepCopyObject().(api.Object))
			writes = append(writes, w)
			return err
		}
		if err != nil {
			return err
		}
		w, err := s.mend(res, have, obj)
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

// mend is the write that adds to a role or binding what it lacks, nil for none.
func (s *Server) mend(res *api.Resource, stored *storage.Object, want api.Object) (*storage.Write, error) {
	have, err := decode(res, stored)
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
		fresh, err := s.firstWrite(res, obj)
		w.Value = fresh.Value
		return &w, err
	}
	if w.Value, err = encode(res, obj); err != nil {
		return nil, fmt.Errorf("adding what %s lacks: %w", stored.Key, err)
	}
	return &w, nil
}
