package controlplane

import (
	"context"
	"errors"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Every server writes the type checker's result for each ValidatingAdmissionPolicy to its status, as
// kube-controller-manager's validatingadmissionpolicy-status-controller does. If status.observedGeneration is the
// spec's generation, the spec has been checked.
//
// Each write names the revision that was checked. Of several servers one writes; the writes of the others fail, and the
// watch brings them the result.

// keepTypeChecks checks policies until ctx ends: at once after a change, and again within a minute after a failed
// write. Without policies it costs only a watcher that sleeps.
func (c *ControlPlane) keepTypeChecks(ctx context.Context, res *api.Resource) {
	for ctx.Err() == nil {
		round, end := context.WithTimeout(ctx, upkeepEvery)
		err := c.typeCheckUpkeep(round, res)
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

// typeCheckUpkeep checks all policies, and then each one that changes.
func (c *ControlPlane) typeCheckUpkeep(ctx context.Context, res *api.Resource) error {
	watcher, err := c.Objects.Collection(res).Watch(ctx, storage.WatchRequest{Any: true})
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
			if err := c.noteTypeCheck(ctx, res, e.Object); err != nil && ctx.Err() == nil {
				c.Log.Warn("cannot write the type checks of an admission policy", "policy", e.Object.Key.Name, "err",
					err)
			}
		}
	}
}

// noteTypeCheck writes the result for a policy, unless its spec has been checked.
func (c *ControlPlane) noteTypeCheck(ctx context.Context, res *api.Resource, o *storage.Object) error {
	writes, err := c.Objects.Update(ctx, res, o, "status", func(obj api.Object) {
		p := obj.(*admissionv1.ValidatingAdmissionPolicy)
		if p.Status.ObservedGeneration < p.Generation {
			p.Status.ObservedGeneration = p.Generation
			p.Status.TypeChecking = &admissionv1.TypeChecking{ExpressionWarnings: checkTypes(c.Registry.Snapshot(),
				&p.Spec)}
		}
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	if _, err := c.Objects.Commit(ctx, writes...); err != nil && !overtaken(err) {
		return err
	}
	return nil
}
