package apiserver

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// The kinds that CustomResourceDefinitions define differ in more than their registrations: their objects are created
// only while the definition is as this server knows it, and are deleted with it.

// forbidWhileEnding refuses a new object of a kind whose definition is being deleted.
func forbidWhileEnding(wr *write) error {
	d := wr.res.Definition
	if d == nil || !d.Terminating() {
		return nil
	}
	return apierrors.NewForbidden(wr.res.GroupResource(), wr.name,
		errors.New("create not allowed while custom resource definition is terminating"))
}

// definitionCheck is the part of a create by which it fails if the kind's definition has changed; nil for built-in
// kinds.
func definitionCheck(res *api.Resource) []storage.Write {
	d := res.Definition
	if d == nil {
		return nil
	}
	return []storage.Write{{Op: storage.Check, Expect: d.Revision(),
		Key: storage.Key{Collection: d.Resource.Collection(), Name: d.Name}}}
}

// definitionChanged finds out what a create is to do that failed because the kind's definition has changed: it is tried
// again, unless the kind is another one now.
func (s *Server) definitionChanged(ctx context.Context, wr *write, refused *storage.Refusal) error {
	var conflict *storage.Conflict
	if !errors.As(refused, &conflict) { // the definition is gone, and its kind with it
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

// forgetKinds drops what was made of kinds that the registry has lost. Most of it would be replaced when it is next
// asked for; until then it would keep the kinds' schemas and rules in memory.
func (s *Server) forgetKinds() {
	s.discovery.Forget()
	s.appliers.Forget(s.Registry)
	s.cluster.Forget()
}
