package apiserver

import (
	"context"
	"errors"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every server sees to it that the status of each ValidatingAdmissionPolicy says what the type checker has
// to say of its spec, as kube-controller-manager's validatingadmissionpolicy-status-controller does. A spec that
// someone has checked is left alone: status.observedGeneration says so.
//
// Each write names the revision that was checked. Of several servers one writes, and the others, who are
// refused, hear of it as they hear of any change.

// keepTypeChecks does so until ctx ends: for what changes at once, for what could not be written within a minute.
// Where there are no policies, it costs a watcher that sleeps.
func (s *Server) keepTypeChecks(ctx context.Context) {
	res := s.Registry.Snapshot().Kind(admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"))
	if res == nil {
		return
	}
	for ctx.Err() == nil {
		round, end := context.WithTimeout(ctx, upkeepEvery)
		err := s.typeCheckUpkeep(round, res)
		closed := errors.Is(err, storage.ErrUnavailable)
		if !closed {
			<-round.Done()
		}
		end()
		if closed {
			return
		}
	}
}

// typeCheckUpkeep looks at all policies, and then at each that changes.
func (s *Server) typeCheckUpkeep(ctx context.Context, res *api.Resource) error {
	watcher, err := s.collection(res).Watch(ctx, storage.WatchRequest{Any: true})
	if err != nil {
		return err
	}
	defer watcher.Close()
	for {
		events, err := watcher.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Type == storage.Deleted {
				continue
			}
			if err := s.noteTypeCheck(ctx, res, e.Object); err != nil && ctx.Err() == nil {
				s.Log.Warn("checking the types of an admission policy", "policy", e.Object.Key.Name, "error", err)
			}
		}
	}
}

// noteTypeCheck writes what the checker has to say of a policy, unless that is known.
func (s *Server) noteTypeCheck(ctx context.Context, res *api.Resource, o *storage.Object) error {
	as := s.self(res)
	as.subresource = "status"
	writes, err := s.amendAs(as, res, o, func(obj api.Object) {
		p := obj.(*admissionv1.ValidatingAdmissionPolicy)
		if p.Status.ObservedGeneration < p.Generation {
			p.Status.ObservedGeneration = p.Generation
			p.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: checkTypes(s.Registry.Snapshot(), &p.Spec)}
		}
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	if _, err := s.Store.Commit(ctx, writes...); err != nil && !overtaken(err) {
		return err
	}
	return nil
}
