package authentication

import (
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// selfSubjectReviews returns the kind of reviews that report the caller's own identity (KEP-3325): kubectl auth
// whoami.
func selfSubjectReviews() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names: api.Names{
			Group: authenticationv1.GroupName, Version: "v1", Kind: "SelfSubjectReview", Plural: "selfsubjectreviews",
		},
		Storage: api.Storage{New: func() api.Object { return &authenticationv1.SelfSubjectReview{} }},
	})
}

// tokenReviews returns the kind of reviews that report a bearer token's user and valid audiences.
func tokenReviews() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names: api.Names{
			Group: authenticationv1.GroupName, Version: "v1", Kind: "TokenReview", Plural: "tokenreviews",
		},
		Storage: api.Storage{New: func() api.Object { return &authenticationv1.TokenReview{} }},
	})
}
