package apiserver

import (
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/review"
	"github.com/coxswain-dev/coxswain/storage"
)

// review answers a POST of a kind that is never stored, such as a SubjectAccessReview.
func (s *Server) review(w http.ResponseWriter, r *request) error {
	if err := query.CheckWrite(r.query, "CreateOptions"); err != nil {
		return err
	}
	obj, warnings, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	if err := place(r, obj); err != nil {
		return err
	}
	if binding, ok := obj.(*corev1.Binding); ok {
		return s.bindNamed(w, r, binding)
	}
	if r.res.Default != nil {
		r.res.Default(obj)
	}
	if r.res.Validate != nil {
		if err := invalidObject(r.res, obj.GetName(), r.res.Validate(obj)); err != nil {
			return err
		}
	}
	if err := s.reviewer.Answer(r.Context(), r.res.GVK(), obj); err != nil {
		return err
	}
	doc, err := encoding.Encode(r.res, obj)
	if err != nil {
		return err
	}
	responsewriter.AddWarnings(w.Header(), warnings)
	return s.writeObject(w, r, http.StatusCreated, &storage.Object{JSON: doc})
}

// bindingKind is the only CreateOnly kind that is no review: it is carried out, and answered with a Status.
var bindingKind = corev1.SchemeGroupVersion.WithKind("Binding")

// checkReviewers returns an error if there is no code that answers a review of the registry.
func (s *Server) checkReviewers() error {
	for _, res := range s.Registry.Snapshot().Resources {
		if res.CreateOnly && res.GVK() != bindingKind && !review.Answers(res.GVK()) {
			return fmt.Errorf("apiserver: no code answers a %s", res.GVK())
		}
	}
	return nil
}
