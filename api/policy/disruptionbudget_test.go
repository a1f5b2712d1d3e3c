package policy_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestPodDisruptionBudget_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "PodDisruptionBudget", "spec: {minAvailable: 50%, selector: {}}", []kindtest.Case{
		{"both", []string{"minAvailable: 50%", "minAvailable: 1, maxUnavailable: 1"}, []string{"Invalid spec"}},
		{"over", []string{"50%", "150%"}, []string{"Invalid spec.minAvailable"}},
		{"negative", []string{"50%", "-1"}, []string{"Invalid spec.minAvailable"}},
	})
}
