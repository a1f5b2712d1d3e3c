package api

import (
	authenticationv1 "k8s.io/api/authentication/v1"
)

// selfSubjectReviews ask who the caller is (KEP-3325): kubectl auth whoami.
func selfSubjectReviews() *Resource {
	return review(Resource{
		Group: authenticationv1.GroupName, Version: "v1", Kind: "SelfSubjectReview", Plural: "selfsubjectreviews",
		New: func() Object { return &authenticationv1.SelfSubjectReview{} },
	})
}

// tokenReviews ask whose a bearer token is, and for which audiences it is good.
func tokenReviews() *Resource {
	return review(Resource{
		Group: authenticationv1.GroupName, Version: "v1", Kind: "TokenReview", Plural: "tokenreviews",
		New: func() Object { return &authenticationv1.TokenReview{} },
	})
}
