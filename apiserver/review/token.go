package review

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// token identifies the user of a bearer token, for services that receive tokens of this cluster and want to know
// whether they are valid.
func (r *Reviewer) token(ctx context.Context, review *authenticationv1.TokenReview) error {
	if review.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	review.CreationTimestamp = metav1.NewTime(r.Clock.Now()).Rfc3339Copy()
	review.Status = authenticationv1.TokenReviewStatus{}
	id, ok, err := r.Tokens.AuthenticateToken(ctx, review.Spec.Token, review.Spec.Audiences)
	if err != nil {
		review.Status.Error = err.Error()
		return nil
	}
	if ok {
		review.Status.Authenticated = true
		review.Status.User = id.User.Info()
		review.Status.Audiences = id.Audiences
	}
	return nil
}
