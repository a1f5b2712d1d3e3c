// Package admissionregistration is the group admissionregistration.k8s.io/v1: webhooks, and admission policies in CEL.
// The expressions of a policy are compiled here before it is accepted.
package admissionregistration

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of admissionregistration.k8s.io, in the order of discovery. Each call makes new
// registrations.
func Kinds() []*api.Resource {
	return references.In(
		mutatingPolicies(),
		mutatingPolicyBindings(),
		mutatingWebhooks(),
		validatingPolicies(),
		validatingPolicyBindings(),
		validatingWebhooks(),
	)
}
