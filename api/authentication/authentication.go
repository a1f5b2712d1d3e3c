// Package authentication is the group authentication.k8s.io/v1: reviews, which are answered and not stored.
package authentication

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of authentication.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{selfSubjectReviews(), tokenReviews()}
}
