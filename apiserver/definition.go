package apiserver

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/storage"
)

// Custom resources depend on their CustomResourceDefinition: an object is only created if this server knows the current
// definition, and objects are deleted with it.

// forbidWhileEnding rejects a new object of a kind whose definition is being deleted.
func forbidWhileEnding(wr *write) error {
	d := wr.res.Definition
	if d == nil || !d.Terminating() {
		return nil
	}
	return apierrors.NewForbidden(wr.res.GroupResource(), wr.name,
		errors.New("create not allowed while custom resource definition is terminating"))
}

// definitionCheck returns the condition of a create that the kind's definition has not changed; nil for built-in kinds.
func definitionCheck(res *api.Resource) []storage.Write {
	d := res.Definition
	if d == nil {
		return nil
	}
	return []storage.Write{{Op: storage.Check, Expect: d.Revision(),
		Key: storage.Key{Collection: d.Resource.Collection(), Name: d.Name}}}
}

// definitionChanged decides about a create that failed because the kind's definition has changed. It returns
// errLostRace if the create is retried, and other errors if the kind has ended or no longer accepts objects.
func (s *Server) definitionChanged(ctx context.Context, wr *write, refused *storage.Refusal) error {
	var conflict *storage.Conflict
	if !errors.As(refused, &conflict) { // the definition has been deleted
		return notFoundPath()
	}
	if err := s.definitions.Await(ctx, conflict.Current.Revision); err != nil {
		return err
	}
	if wr.kindEnded() {
		return apierrors.NewServerTimeout(wr.res.GroupResource(), "create", 1)
	}
	if err := forbidWhileEnding(wr); err != nil {
		return err
	}
	return errLostRace
}

// kindEnded reports whether the definition of the request's kind has changed, or is gone, since the request was routed.
func (r *request) kindEnded() bool {
	return r.res.Definition != nil && r.res.Definition.Present().Err() != nil
}

// forgetKinds drops cached data of kinds that the registry has lost. Most of it would be replaced when it is next used.
// Until then it would keep the kinds' schemas and rules in memory.
func (s *Server) forgetKinds() {
	s.discovery.Forget()
	s.appliers.Forget(s.Registry)
	s.cluster.Forget()
	kinds := s.Registry.Snapshot()
	s.metrics.Forget(func(r metrics.Request) bool {
		gvr := schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}
		return r.Resource != "" && kinds.Resource(gvr) == nil
	})
	served := map[string]bool{}
	for _, res := range kinds.Resources {
		served[res.Collection()] = true
	}
	s.Store.ForgetEvents(func(collection string) bool { return !served[collection] })
}
