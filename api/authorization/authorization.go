// Package authorization is the group authorization.k8s.io/v1: reviews, which are answered and not stored.
package authorization

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of authorization.k8s.io, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return []*api.Resource{
		localSubjectAccessReviews(),
		selfSubjectAccessReviews(),
		selfSubjectRulesReviews(),
		subjectAccessReviews(),
	}
}
