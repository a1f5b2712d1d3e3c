package coordination_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestLease_ValidateRejects(t *testing.T) {
	t.Parallel()
	const lease = "metadata: {name: l}\nspec: {holderIdentity: a, leaseDurationSeconds: 15, leaseTransitions: 0}\n"
	kindtest.Create(t, "Lease", lease, []kindtest.Case{
		{"duration", []string{"leaseDurationSeconds: 15", "leaseDurationSeconds: 0"},
			[]string{"Invalid spec.leaseDurationSeconds"}},
		{"transitions", []string{"leaseTransitions: 0", "leaseTransitions: -1"},
			[]string{"Invalid spec.leaseTransitions"}},
		{"preferred holder", []string{"spec: {", "spec: {preferredHolder: b, "},
			[]string{"Forbidden spec.preferredHolder"}},
	})
}
