package core_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestLimitRange_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "LimitRange", "spec: {limits: [{type: Container, max: {cpu: 2}, min: {cpu: 1}}]}",
		[]kindtest.Case{
			{"min above max", []string{"min: {cpu: 1}", "min: {cpu: 3}, defaultRequest: {cpu: 2}"},
				[]string{"Invalid spec.limits[0].min[cpu]", "Invalid spec.limits[0].defaultRequest[cpu]",
					"Invalid spec.limits[0].default[cpu]"}},
			{"type", []string{"type: Container, ", ""},
				[]string{"Invalid spec.limits[0].type", "Invalid spec.limits[0].type"}},
		})
}

func TestResourceQuota_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "ResourceQuota", "spec: {hard: {pods: 3}, scopes: [BestEffort]}", []kindtest.Case{
		{"negative", []string{"pods: 3", "pods: -3"}, []string{"Invalid spec.hard[pods]"}},
		{"scope", []string{"BestEffort", "Odd"}, []string{"Invalid spec.scopes"}},
		{"scope of pods on claims", []string{"pods: 3", "persistentvolumeclaims: 3"}, []string{"Invalid spec.scopes"}},
	})
}
