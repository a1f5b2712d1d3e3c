package apiserver

import (
	"context"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
)

// reviewer answers a review: it fills in the status of what was asked, or says why not. It
// has been defaulted and validated.
type reviewer func(s *Server, ctx context.Context, obj api.Object) error

// reviewers answer the kinds that api registers as reviews.
var reviewers = map[schema.GroupVersionKind]reviewer{
	authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"): answering((*Server).reviewSelf),
	authenticationv1.SchemeGroupVersion.WithKind("TokenReview"):       answering((*Server).reviewToken),

	authorizationv1.SchemeGroupVersion.WithKind("SubjectAccessReview"):      answering((*Server).reviewSubjectAccess),
	authorizationv1.SchemeGroupVersion.WithKind("LocalSubjectAccessReview"): answering((*Server).reviewLocalSubjectAccess),
	authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"):  answering((*Server).reviewSelfSubjectAccess),
	authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectRulesReview"):   answering((*Server).reviewSelfSubjectRules),
}

// answering is a reviewer of one Go type.
func answering[T api.Object](f func(s *Server, ctx context.Context, review T) error) reviewer {
	return func(s *Server, ctx context.Context, obj api.Object) error { return f(s, ctx, obj.(T)) }
}

// review answers a POST of a kind that is a question. Nothing is stored.
func (s *Server) review(w http.ResponseWriter, r *request) error {
	if err := checkWriteOptions(r, "CreateOptions"); err != nil {
		return err
	}
	obj, err := s.readObject(w, r)
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
	if err := reviewers[r.res.GVK()](s, r.Context(), obj); err != nil {
		return err
	}
	doc, err := encode(r.res, obj)
	if err != nil {
		return err
	}
	return s.writeObject(w, r, http.StatusCreated, &storage.Object{JSON: doc})
}

// bindingKind is the one kind that is posted to be done, and answered with a Status.
var bindingKind = corev1.SchemeGroupVersion.WithKind("Binding")

// checkReviewers makes sure that every review of the registry is answered.
func (s *Server) checkReviewers() error {
	for _, res := range s.Registry.Snapshot().Resources {
		if res.Review && res.GVK() != bindingKind && reviewers[res.GVK()] == nil {
			return fmt.Errorf("apiserver: nothing answers a %s", res.GVK())
		}
	}
	return nil
}

// reviewSelf tells the caller who he is (KEP-3325).
func (s *Server) reviewSelf(ctx context.Context, review *authenticationv1.SelfSubjectReview) error {
	review.CreationTimestamp = metav1.NewTime(s.Clock.Now()).Rfc3339Copy()
	review.Status.UserInfo = authn.UserFrom(ctx).Info()
	return nil
}
