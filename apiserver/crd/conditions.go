package crd

import (
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setStatus sets the accepted names and the conditions of a definition. used are the names of its group's kinds.
func setStatus(crd *apiextensionsv1.CustomResourceDefinition, used *names) {
	acceptNames(crd, used)
	establish(crd)
	if crd.Spec.PreserveUnknownFields {
		apihelpers.SetCRDCondition(crd, condition(apiextensionsv1.NonStructuralSchema, true, "Violations",
			"spec.preserveUnknownFields: Invalid value: true: must be false"))
	} else {
		apihelpers.RemoveCRDCondition(crd, apiextensionsv1.NonStructuralSchema)
	}
	if !approvalHolds(crd) {
		apihelpers.SetCRDCondition(crd, *approval(crd))
	}
}

func (c *Controller) setCondition(crd *apiextensionsv1.CustomResourceDefinition,
	changed apiextensionsv1.CustomResourceDefinitionCondition) {
	old := slices.Clone(crd.Status.Conditions)
	apihelpers.SetCRDCondition(crd, changed)
	setTransitionTimes(crd, old, c.Clock.Now())
}

// setTransitionTimes sets the time of conditions with another status than before. apihelpers takes the machine's time.
func setTransitionTimes(crd *apiextensionsv1.CustomResourceDefinition,
	before []apiextensionsv1.CustomResourceDefinitionCondition, now time.Time) {
	for i := range crd.Status.Conditions {
		c := &crd.Status.Conditions[i]
		same := func(old apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return old.Type == c.Type && old.Status == c.Status
		}
		if !slices.ContainsFunc(before, same) {
			c.LastTransitionTime = metav1.NewTime(now)
		}
	}
}

func condition(kind apiextensionsv1.CustomResourceDefinitionConditionType, holds bool,
	reason, message string) apiextensionsv1.CustomResourceDefinitionCondition {
	status := apiextensionsv1.ConditionFalse
	if holds {
		status = apiextensionsv1.ConditionTrue
	}
	return apiextensionsv1.CustomResourceDefinitionCondition{Type: kind, Status: status, Reason: reason,
		Message: message}
}
