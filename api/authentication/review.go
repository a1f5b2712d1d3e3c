package authentication

import (
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// selfSubjectReviews ask who the caller is (KEP-3325): kubectl auth whoami.
func selfSubjectReviews() *api.Resource {
	return api.ReviewOf(api.Resource{
		Group: authenticationv1.GroupName, Version: "v1", Kind: "SelfSubjectReview", Plural: "selfsubjectreviews",
		New: func() api.Object { return &authenticationv1.SelfSubjectReview{} },
	})
}

// tokenReviews ask whose a bearer token is, and for which audiences it is valid.
func tokenReviews() *api.Resource {
	return api.ReviewOf(api.Resource{
		Group: authenticationv1.GroupName, Version: "v1", Kind: "TokenReview", Plural: "tokenreviews",
		New: func() api.Object { return &authenticationv1.TokenReview{} },
	})
}
