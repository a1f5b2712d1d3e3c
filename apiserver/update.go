package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/storage"
)

// update answers a PUT of an object or of a subresource.
func (s *Server) update(w http.ResponseWriter, r *request) error {
	if err := checkWriteOptions(r, "UpdateOptions"); err != nil {
		return err
	}
	if r.subresource == "scale" {
		body, err := s.jsonBody(w, r)
		if err != nil {
			return err
		}
		return s.updateScale(w, r, func([]byte) ([]byte, error) { return body, nil })
	}
	obj, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	if err := place(r, obj); err != nil {
		return err
	}
	code := http.StatusOK
	written, err := s.updateObject(r, obj)
	if r.subresource == "" && r.res.Stored().CreateOnUpdate && errors.Is(err, storage.ErrNotFound) {
		code = http.StatusCreated
		written, err = s.createByUpdate(r, obj)
	}
	if err != nil {
		return err
	}
	return s.writeObject(w, r, code, written)
}

// updateObject puts the object in the place of the one there is.
func (s *Server) updateObject(r *request, obj api.Object) (*storage.Object, error) {
	decoding := r.warnings
	blind := r.res.Stored().Conditional && (obj.GetResourceVersion() == "" || obj.GetResourceVersion() == "0")
	return s.modify(r.Context(), r, func(old api.Object) (api.Object, error) {
		r.warnings = slices.Clone(decoding)
		if blind {
			return nil, invalidObject(r.res, r.name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update")})
		}
		// What an attempt takes over from old must not look sent by the client in the next.
		sent := obj.DeepCopyObject().(api.Object)
		return s.replace(r, sent, old, sent.GetResourceVersion())
	})
}

// createByUpdate makes the object that an update was to change. It takes the right to create it.
func (s *Server) createByUpdate(r *request, obj api.Object) (*storage.Object, error) {
	a := attributesOf(r)
	a.Verb = "create"
	if err := s.authorize(r.Context(), a); err != nil {
		return nil, err
	}
	if uid := obj.GetUID(); uid != "" {
		return nil, apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: ", uid))
	}
	obj.SetResourceVersion("")
	created, err := s.createObject(r.Context(), r, obj.DeepCopyObject().(api.Object))
	if errors.Is(err, storage.ErrExists) { // somebody was quicker: it is an update after all
		return s.updateObject(r, obj)
	}
	return created, err
}

// replace makes the object that takes old's place: defaulted, with what the verb may not
// touch carried over, admitted and validated. expect is the resourceVersion that the
// client has seen, "" for any.
func (s *Server) replace(r *request, obj, old api.Object, expect string) (api.Object, error) {
	if err := checkRevision(r, old, expect); err != nil {
		return nil, err
	}
	if r.subresource != "" {
		return s.replacePart(r, obj, old)
	}
	setDefaults(r.res, obj)
	sent := obj.GetManagedFields()
	attributes := s.attributes(r, admission.Update, obj, old)
	if err := s.admission.Mutate(r.Context(), attributes); err != nil {
		return nil, err
	}
	if err := beforeUpdate(r.res, obj, old); err != nil {
		return nil, err
	}
	if err := s.checkEscalation(r.Context(), r, obj, old); err != nil {
		return nil, err
	}
	if err := s.own(r, obj, old, sent); err != nil {
		return nil, err
	}
	if err := s.validate(r.Context(), r, obj, old); err != nil {
		return nil, err
	}
	if err := s.admission.Validate(r.Context(), attributes); err != nil {
		return nil, err
	}
	if r.res.Warnings != nil {
		r.warnings = append(r.warnings, r.res.Warnings(obj, old)...)
	}
	return obj, nil
}

// replacePart makes old with only that changed which the subresource is about.
func (s *Server) replacePart(r *request, obj, old api.Object) (api.Object, error) {
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return nil, apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, old.GetUID()))
	}
	sub := r.res.Subresource(r.subresource)
	merged := old.DeepCopyObject().(api.Object)
	setDefaults(r.res, obj)
	sub.Write(merged, obj)
	if r.res.Touch != nil {
		r.res.Touch(merged, old, s.now())
	}
	attributes := s.attributes(r, admission.Update, merged, old)
	if err := s.admission.Mutate(r.Context(), attributes); err != nil {
		return nil, err
	}
	if attributes.Rewritten() {
		rewrite(sub, merged, old)
	}
	if r.subresource != "status" && r.res.Generation && !sameBesideMeta(merged, old) {
		merged.SetGeneration(old.GetGeneration() + 1)
	}
	if err := s.own(r, merged, old, obj.GetManagedFields()); err != nil {
		return nil, err
	}
	if err := s.validatePart(r.Context(), r, sub, merged, old); err != nil {
		return nil, err
	}
	if err := s.admission.Validate(r.Context(), attributes); err != nil {
		return nil, err
	}
	return merged, nil
}

// checkRevision refuses a write by someone who has seen another revision. "0" is any.
func checkRevision(r *request, old api.Object, expect string) error {
	if expect == "" || expect == "0" || expect == old.GetResourceVersion() {
		return nil
	}
	if _, err := strconv.ParseUint(expect, 10, 64); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %q", expect))
	}
	return apierrors.NewConflict(r.res.GroupResource(), r.name, errModified)
}
