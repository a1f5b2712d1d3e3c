package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
)

const (
	defaultTokenSeconds = 60 * 60
	minTokenSeconds     = 10 * 60
	maxTokenSeconds     = 1 << 32
	// podTokenSeconds is what the projected volume of every pod asks for: an hour and a
	// little. A token of this life may be one that its client reads only once, so it is
	// signed for longer (KEP-1205).
	podTokenSeconds      = 60*60 + 7
	extendedTokenSeconds = 365 * 24 * 60 * 60
)

var tokenRequestKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// requestToken answers a POST of a TokenRequest below a service account.
// https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-request-v1/
func (s *Server) requestToken(w http.ResponseWriter, r *request) error {
	issuer := s.Authentication.ServiceAccounts
	if issuer == nil {
		return notFoundPath()
	}
	req := &authenticationv1.TokenRequest{}
	if err := s.readInto(w, r, tokenRequestKind, req); err != nil {
		return err
	}
	account, err := current[*corev1.ServiceAccount](r.Context(), s, "ServiceAccount", r.namespace, r.name)
	if err != nil {
		return err
	}
	if err := completeTokenRequest(r, issuer, req); err != nil {
		return err
	}
	now := s.Clock.Now()
	req.CreationTimestamp = metav1.NewTime(now).Rfc3339Copy()
	req.Status = authenticationv1.TokenRequestStatus{}
	if err := s.admitChild(r, req); err != nil {
		return err
	}
	token := authn.TokenRequest{Account: account, Audiences: req.Spec.Audiences, IssuedAt: now}
	if err := s.bindToken(r.Context(), req.Spec.BoundObjectRef, &token); err != nil {
		return err
	}
	lifeOfToken(r, issuer, req, &token)
	text, err := issuer.Sign(token)
	if err != nil {
		return err
	}
	lifetime := time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	req.Status = authenticationv1.TokenRequestStatus{
		Token: text, ExpirationTimestamp: metav1.NewTime(now.Add(lifetime)).Rfc3339Copy(),
	}
	req.SetGroupVersionKind(tokenRequestKind)
	return s.writeTokenRequest(w, r, req)
}

// completeTokenRequest fills in what the request leaves out, and validates it.
func completeTokenRequest(r *request, issuer *authn.Issuer, req *authenticationv1.TokenRequest) error {
	var errs field.ErrorList
	for _, f := range []struct {
		name      string
		is        *string
		mustBe    string
		complaint string
	}{
		{"name", &req.Name, r.name, "must match the service account name if specified"},
		{"namespace", &req.Namespace, r.namespace, "must match the service account namespace if specified"},
	} {
		if *f.is != "" && *f.is != f.mustBe {
			errs = append(errs, field.Invalid(field.NewPath("metadata", f.name), *f.is, f.complaint))
		}
		*f.is = f.mustBe
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequestKind.GroupKind(), r.name, errs)
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(issuer.Audiences)
	}
	if req.Spec.ExpirationSeconds == nil {
		req.Spec.ExpirationSeconds = ptr.To[int64](defaultTokenSeconds)
	}
	seconds, path := *req.Spec.ExpirationSeconds, field.NewPath("spec", "expirationSeconds")
	if seconds < minTokenSeconds {
		errs = append(errs, field.Invalid(path, seconds, "may not specify a duration less than 10 minutes"))
	}
	if seconds > maxTokenSeconds {
		errs = append(errs, field.Invalid(path, seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequestKind.GroupKind(), "", errs)
	}
	return nil
}

// bindToken looks up what the token shall be valid with.
func (s *Server) bindToken(ctx context.Context, ref *authenticationv1.BoundObjectReference, token *authn.TokenRequest) error {
	if ref == nil {
		return nil
	}
	namespace := token.Account.Namespace
	var uid types.UID
	var err error
	switch kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind); kind.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		if token.Pod, err = current[*corev1.Pod](ctx, s, "Pod", namespace, ref.Name); err != nil {
			return err
		}
		if token.Pod.Spec.ServiceAccountName != token.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", token.Account.Name))
		}
		uid = token.Pod.UID
		if token.Node, err = s.nodeOf(ctx, token.Pod); err != nil {
			return err
		}
	case schema.GroupKind{Kind: "Secret"}:
		if token.Secret, err = current[*corev1.Secret](ctx, s, "Secret", namespace, ref.Name); err != nil {
			return err
		}
		uid = token.Secret.UID
	case schema.GroupKind{Kind: "Node"}:
		if token.Node, err = current[*corev1.Node](ctx, s, "Node", "", ref.Name); err != nil {
			return err
		}
		uid = token.Node.UID
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", kind))
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Resource: ref.Kind}, ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// nodeOf is the node that a pod runs on: by its name alone if it does not exist.
func (s *Server) nodeOf(ctx context.Context, pod *corev1.Pod) (*corev1.Node, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	node, err := current[*corev1.Node](ctx, s, "Node", "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, nil
	}
	return node, err
}

// lifeOfToken decides how long the token is valid. A client that asks for more than is
// allowed is warned, and gets less.
func lifeOfToken(r *request, issuer *authn.Issuer, req *authenticationv1.TokenRequest, token *authn.TokenRequest) {
	if most := int64(issuer.MaxExpiration / time.Second); most > 0 && *req.Spec.ExpirationSeconds > most {
		r.warnings = append(r.warnings, fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *req.Spec.ExpirationSeconds, most))
		req.Spec.ExpirationSeconds = &most
	}
	seconds := *req.Spec.ExpirationSeconds
	token.Lifetime = time.Duration(seconds) * time.Second
	forUs := !slices.ContainsFunc(req.Spec.Audiences, func(a string) bool { return !slices.Contains(issuer.Audiences, a) })
	if token.Pod != nil && seconds == podTokenSeconds && forUs && !issuer.KeepExpiration {
		token.WarnAfter, token.Lifetime = token.Lifetime, extendedTokenSeconds*time.Second
	}
}

func (s *Server) writeTokenRequest(w http.ResponseWriter, r *request, req *authenticationv1.TokenRequest) error {
	addWarnings(w.Header(), r.warnings)
	var value any = req
	version, kind := req.APIVersion, req.Kind
	if r.out.view == viewPartial {
		value, version, kind = partialMetadata(req), "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	body, err := json.Marshal(value)
	if r.out.media == mediaProtobuf {
		body, err = wrapProtobuf(version, kind, value)
	}
	if err != nil {
		return fmt.Errorf("encoding a token request: %w", err)
	}
	return s.writeBody(w, r.out, http.StatusCreated, body)
}

// current reads an object of the core group that the answer to a request stands on, as new as
// etcd has it.
func current[T api.Object](ctx context.Context, s *Server, kind, namespace, name string) (T, error) {
	var none T
	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind(kind))
	if res == nil {
		return none, notFoundPath()
	}
	o, err := s.collection(res).Get(ctx, namespace, name, storage.At{})
	if errors.Is(err, storage.ErrNotFound) {
		return none, apierrors.NewNotFound(res.GroupResource(), name)
	}
	if err != nil {
		return none, err
	}
	obj, err := decode(res, o)
	if err != nil {
		return none, err
	}
	return obj.(T), nil
}
