package review

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

const (
	defaultTokenSeconds = 60 * 60
	minTokenSeconds     = 10 * 60
	maxTokenSeconds     = 1 << 32
	// extendedTokenSeconds is the life of a token that was requested for authn.PodTokenSeconds.
	extendedTokenSeconds = 365 * 24 * 60 * 60
)

// TokenRequestKind is the kind of a request for a token.
var TokenRequestKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// Objects are the API objects that tokens are bound to.
type Objects interface {
	// Newest reads an object as new as etcd has it. If it does not exist, it returns the error that a client's read
	// would get.
	Newest(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (api.Object, error)
}

// Tokens issues tokens for TokenRequests. It is safe for concurrent use.
// https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-request-v1/
type Tokens struct {
	Issuer  *authn.Issuer
	Objects Objects
	Clock   clock.PassiveClock
}

// PendingToken is a requested token that is not signed yet: admission comes before Sign.
type PendingToken struct {
	tokens *Tokens
	req    *authenticationv1.TokenRequest
	token  authn.TokenRequest
}

// Prepare reads the service account of a requested token, and defaults and validates the request.
func (t *Tokens) Prepare(ctx context.Context, namespace, name string, req *authenticationv1.TokenRequest) (
	*PendingToken, error) {
	account, err := newest[*corev1.ServiceAccount](ctx, t, "ServiceAccount", namespace, name)
	if err != nil {
		return nil, err
	}
	if err := t.complete(account, req); err != nil {
		return nil, err
	}
	now := t.Clock.Now()
	req.CreationTimestamp = metav1.NewTime(now).Rfc3339Copy()
	req.Status = authenticationv1.TokenRequestStatus{}
	return &PendingToken{tokens: t, req: req, token: authn.TokenRequest{Account: account, IssuedAt: now}}, nil
}

// Sign puts the token into the request's status. Admission may have changed the request since Prepare.
func (p *PendingToken) Sign(ctx context.Context) (warnings []string, err error) {
	t, req := p.tokens, p.req
	if err := t.complete(p.token.Account, req); err != nil {
		return nil, err
	}
	p.token.Audiences = req.Spec.Audiences
	if err := t.bind(ctx, req.Spec.BoundObjectRef, &p.token); err != nil {
		return nil, err
	}
	warnings = t.setLifetime(req, &p.token)
	text, err := t.Issuer.Sign(p.token)
	if err != nil {
		return nil, err
	}
	lifetime := time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	req.Status = authenticationv1.TokenRequestStatus{
		Token: text, ExpirationTimestamp: metav1.NewTime(p.token.IssuedAt.Add(lifetime)).Rfc3339Copy(),
	}
	req.SetGroupVersionKind(TokenRequestKind)
	return warnings, nil
}

// complete sets the defaults of a request for a token of that account, and validates it.
func (t *Tokens) complete(account *corev1.ServiceAccount, req *authenticationv1.TokenRequest) error {
	var errs field.ErrorList
	for _, f := range []struct {
		name      string
		is        *string
		mustBe    string
		complaint string
	}{
		{"name", &req.Name, account.Name, "must match the service account name if specified"},
		{"namespace", &req.Namespace, account.Namespace, "must match the service account namespace if specified"},
	} {
		if *f.is != "" && *f.is != f.mustBe {
			errs = append(errs, field.Invalid(field.NewPath("metadata", f.name), *f.is, f.complaint))
		}
		*f.is = f.mustBe
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(TokenRequestKind.GroupKind(), account.Name, errs)
	}
	if req.UID != "" && req.UID != account.UID { // of an earlier account of the name
		kind := schema.GroupResource{Group: TokenRequestKind.Group, Resource: TokenRequestKind.Kind}
		return apierrors.NewConflict(kind, account.Name, fmt.Errorf(
			"the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID,
			account.UID))
	}
	req.UID = account.UID
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(t.Issuer.Audiences)
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
		return apierrors.NewInvalid(TokenRequestKind.GroupKind(), "", errs)
	}
	return nil
}

// bind looks up the object that the token is bound to.
func (t *Tokens) bind(ctx context.Context, ref *authenticationv1.BoundObjectReference,
	token *authn.TokenRequest) error {
	if ref == nil {
		return nil
	}
	namespace := token.Account.Namespace
	var uid types.UID
	var err error
	switch kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind); kind.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		if token.Pod, err = newest[*corev1.Pod](ctx, t, "Pod", namespace, ref.Name); err != nil {
			return err
		}
		if token.Pod.Spec.ServiceAccountName != token.Account.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running "+
				"with different serviceaccount name.", token.Account.Name))
		}
		uid = token.Pod.UID
		if token.Node, err = t.nodeOf(ctx, token.Pod); err != nil {
			return err
		}
	case schema.GroupKind{Kind: "Secret"}:
		if token.Secret, err = newest[*corev1.Secret](ctx, t, "Secret", namespace, ref.Name); err != nil {
			return err
		}
		uid = token.Secret.UID
	case schema.GroupKind{Kind: "Node"}:
		if token.Node, err = newest[*corev1.Node](ctx, t, "Node", "", ref.Name); err != nil {
			return err
		}
		uid = token.Node.UID
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", kind))
	}
	if ref.UID != "" && ref.UID != uid {
		return apierrors.NewConflict(schema.GroupResource{Resource: ref.Kind}, ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have "+
				"been deleted and then recreated", ref.UID))
	}
	return nil
}

// nodeOf returns the node that a pod runs on. If it does not exist, the result has only its name.
func (t *Tokens) nodeOf(ctx context.Context, pod *corev1.Pod) (*corev1.Node, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil
	}
	node, err := newest[*corev1.Node](ctx, t, "Node", "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, nil
	}
	return node, err
}

// setLifetime sets the lifetime of the token. A requested lifetime above the maximum is shortened, with a warning.
func (t *Tokens) setLifetime(req *authenticationv1.TokenRequest, token *authn.TokenRequest) (warnings []string) {
	if maximum := int64(t.Issuer.MaxExpiration / time.Second); maximum > 0 && *req.Spec.ExpirationSeconds > maximum {
		warnings = append(warnings, fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds",
			*req.Spec.ExpirationSeconds, maximum))
		req.Spec.ExpirationSeconds = &maximum
	}
	seconds := *req.Spec.ExpirationSeconds
	token.Lifetime = time.Duration(seconds) * time.Second
	forUs := !slices.ContainsFunc(req.Spec.Audiences, func(a string) bool {
		return !slices.Contains(t.Issuer.Audiences, a)
	})
	if token.Pod != nil && seconds == authn.PodTokenSeconds && forUs && !t.Issuer.KeepExpiration {
		token.WarnAfter, token.Lifetime = token.Lifetime, extendedTokenSeconds*time.Second
	}
	return warnings
}

// newest reads an object of the core group.
func newest[T api.Object](ctx context.Context, t *Tokens, kind, namespace, name string) (T, error) {
	obj, err := t.Objects.Newest(ctx, corev1.SchemeGroupVersion.WithKind(kind), namespace, name)
	if err != nil {
		var none T
		return none, err
	}
	return obj.(T), nil
}
