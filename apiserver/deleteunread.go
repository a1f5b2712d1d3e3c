package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/storage"
)

// unsafeDelete is the verb that a user needs, besides delete, to delete objects that cannot be read.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#force-deletion
const unsafeDelete = "unsafe-delete-ignore-read-errors"

func ignoresReadErrors(o *metav1.DeleteOptions) bool {
	return o.IgnoreStoreReadErrorWithClusterBreakingPotential != nil &&
		*o.IgnoreStoreReadErrorWithClusterBreakingPotential
}

func readErrorsInvalid(r *request, fault string) error {
	gr := r.res.GroupResource()
	return apierrors.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: gr.Resource}, r.name, field.ErrorList{
		field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true, fault)})
}

// deleteUnread deletes an object that cannot be read, without regard to finalizers (KEP-3926). It rejects a request for
// an object that can be read.
func (s *Server) deleteUnread(w http.ResponseWriter, wr *write) error {
	ctx, r := wr.Context(), wr.request
	if wr.isDryRun() {
		return readErrorsInvalid(r, "cannot be set together with .dryRun")
	}
	a := attributesOf(r)
	a.Verb = unsafeDelete
	if err := s.authorize(ctx, a); err != nil {
		return apierrors.NewForbidden(r.res.GroupResource(), r.name,
			fmt.Errorf("not permitted to do %q, reason: %w", unsafeDelete, err))
	}
	damaged, err := damagedObject(ctx, r)
	if err != nil {
		return err
	}
	// Admission sees an object that has only a name, since the stored object cannot be read.
	empty := r.res.New()
	empty.SetNamespace(r.namespace)
	empty.SetName(r.name)
	if err := s.admitDelete(ctx, wr, empty); err != nil {
		return err
	}
	for {
		s.Log.Warn("failed to read an object that a user deletes", "object", damaged.Key.String(), "user",
			r.user().Name, "err", damaged.Err)
		_, err := s.Store.Commit(ctx, storage.Write{Op: storage.Delete, Key: damaged.Key, Expect: damaged.Revision})
		switch {
		case err == nil:
			responsewriter.AddWarnings(w.Header(), wr.warnings)
			return s.writeStatus(w, r.Request, metav1.Status{Status: metav1.StatusSuccess,
				Details: &metav1.StatusDetails{Name: r.name, Group: r.res.Group, Kind: r.res.Plural}})
		case !errors.As(err, new(*storage.Refusal)):
			return err
		}
		if damaged, err = damagedObject(ctx, r); err != nil { // another writer has changed it
			return err
		}
	}
}

// damagedObject returns the damage of the request's object, and an error if it has none.
func damagedObject(ctx context.Context, r *request) (*storage.Damaged, error) {
	_, err := r.objects.Get(ctx, r.namespace, r.name, storage.At{})
	var damaged *storage.Damaged
	switch {
	case errors.As(err, &damaged):
		return damaged, nil
	case err == nil, errors.Is(err, storage.ErrNotFound):
		return nil, readErrorsInvalid(r, "is exclusively used to delete corrupt object(s), try again by removing this "+
			"option")
	}
	return nil, err
}
