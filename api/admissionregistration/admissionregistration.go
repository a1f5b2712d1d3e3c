// Package admissionregistration is the group admissionregistration.k8s.io/v1: webhooks, and admission
// policies written in CEL, whose expressions are compiled here before they are accepted.
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
