package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/storage"
)

// update answers a PUT of an object or of a subresource.
func (s *Server) update(w http.ResponseWriter, r *request) error {
	if err := query.CheckWrite(r.query, "UpdateOptions"); err != nil {
		return err
	}
	if r.subresource == "scale" {
		return s.putScale(w, r)
	}
	obj, warnings, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	if err := place(r, obj); err != nil {
		return err
	}
	code, wr := http.StatusOK, beginWrite(r, warnings)
	written, err := s.updateObject(wr, obj)
	if r.subresource == "" && r.res.Stored().CreateOnUpdate && errors.Is(err, storage.ErrNotFound) {
		code = http.StatusCreated
		written, err = s.createByUpdate(wr, obj)
	}
	if err != nil {
		return err
	}
	return s.writeWritten(w, wr, code, written)
}

// updateObject replaces the stored object with obj.
func (s *Server) updateObject(wr *write, obj api.Object) (*storage.Object, error) {
	blind := wr.res.Stored().Conditional && (obj.GetResourceVersion() == "" || obj.GetResourceVersion() == "0")
	return s.modify(wr.Context(), wr, func(old api.Object) (api.Object, error) {
		if blind {
			return nil, invalidObject(wr.res, wr.name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0),
					"must be specified for an update")})
		}
		// Each attempt has a copy: fields that one attempt takes from old must not look sent by the client in the next.
		sent := obj.DeepCopyObject().(api.Object)
		return s.replace(wr.Context(), wr, sent, old, sent.GetResourceVersion())
	})
}

// createByUpdate creates the object that an update names. The caller needs the right to create it.
func (s *Server) createByUpdate(wr *write, obj api.Object) (*storage.Object, error) {
	a := attributesOf(wr.request)
	a.Verb = "create"
	if err := s.authorize(wr.Context(), a); err != nil {
		return nil, err
	}
	if uid := obj.GetUID(); uid != "" {
		return nil, apierrors.NewConflict(wr.res.GroupResource(), wr.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: ", uid))
	}
	obj.SetResourceVersion("")
	created, err := s.createObject(wr.Context(), wr, obj.DeepCopyObject().(api.Object))
	if errors.Is(err, storage.ErrExists) { // another client has created it: update it after all
		return s.updateObject(wr, obj)
	}
	return created, err
}

// replace admits the object that replaces old. expect is the resourceVersion that the client expects, "" for any.
func (s *Server) replace(ctx context.Context, wr *write, obj, old api.Object, expect string) (api.Object, error) {
	if err := checkRevision(wr.request, old, expect); err != nil {
		return nil, err
	}
	if wr.subresource == "" {
		return s.admit(ctx, wr, updating, obj, old)
	}
	if err := checkUID(wr.request, obj, old); err != nil {
		return nil, err
	}
	return s.admit(ctx, wr, updatingPart, obj, old)
}

// checkRevision rejects a write of a client that expects another revision. "" and "0" match any revision.
func checkRevision(r *request, old api.Object, expect string) error {
	if expect == "" || expect == "0" || expect == old.GetResourceVersion() {
		return nil
	}
	if _, err := strconv.ParseUint(expect, 10, 64); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %q", expect))
	}
	return apierrors.NewConflict(r.res.GroupResource(), r.name, status.ErrModified)
}
