package authorization_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// As in pkg/apis/authorization/validation of Kubernetes, unknown operators are accepted.
func TestAccessReviews_ValidateRejectsSelectors(t *testing.T) {
	t.Parallel()
	for kind, subject := range map[string]string{"SubjectAccessReview": ", user: jane",
		"SelfSubjectAccessReview": "", "LocalSubjectAccessReview": ", groups: [g]"} {
		const sound = "fieldSelector: {requirements: [{key: a, operator: In, values: [b]}]}, " +
			"labelSelector: {requirements: [{key: a, operator: Newer}]}"
		with := func(replacement string) []string { return []string{sound, replacement} }
		review := "metadata: {namespace: ns}\nspec: {resourceAttributes: {namespace: ns, verb: list, resource: pods, " +
			sound + "}" + subject + "}"
		const on = " spec.resourceAttributes."
		kindtest.Create(t, kind, review, []kindtest.Case{
			{"nothing in them", with("fieldSelector: {}, labelSelector: {}"),
				[]string{"Required" + on + "fieldSelector.requirements", "Required" + on + "labelSelector.requirements"}},
			{"both forms", with("fieldSelector: {rawSelector: a=b, requirements: [{key: a, operator: Exists}]}, " +
				"labelSelector: {rawSelector: a, requirements: [{key: a, operator: Exists}]}"),
				[]string{"Invalid" + on + "fieldSelector.rawSelector", "Invalid" + on + "labelSelector.rawSelector"}},
			{"fields", with("fieldSelector: {requirements: [{operator: In, values: [b]}, {key: a, operator: NotIn}, " +
				"{key: a, operator: Exists, values: [b]}, {key: a, operator: Newer}]}"),
				[]string{"Required" + on + "fieldSelector.requirements[0].key",
					"Required" + on + "fieldSelector.requirements[1].values",
					"Forbidden" + on + "fieldSelector.requirements[2].values"}},
			{"labels", with("labelSelector: {requirements: [{key: 'a b', operator: Exists}, {key: a, operator: In}, " +
				"{key: a, operator: DoesNotExist, values: [b]}, {key: a, operator: In, values: ['b c']}]}"),
				[]string{"Invalid" + on + "labelSelector.requirements[0].key",
					"Required" + on + "labelSelector.requirements[1].values",
					"Forbidden" + on + "labelSelector.requirements[2].values",
					"Invalid" + on + "labelSelector.requirements[3].values[0]"}},
		})
	}
}
