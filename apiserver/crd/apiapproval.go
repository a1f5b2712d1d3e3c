package crd

import (
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// approvalHolds reports whether the condition about the approval is as it should be.
func approvalHolds(crd *apiextensionsv1.CustomResourceDefinition) bool {
	should := approval(crd)
	return should == nil || apihelpers.IsCRDConditionEquivalent(should, apihelpers.FindCRDCondition(crd, should.Type))
}

// approval returns the condition of a definition in a group of Kubernetes' own; nil for other groups. Validation
// decides whether such a definition may be there. https://github.com/kubernetes/enhancements/pull/1111
func approval(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	const kind = apiextensionsv1.KubernetesAPIApprovalPolicyConformant
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	var c apiextensionsv1.CustomResourceDefinitionCondition
	switch state {
	case apihelpers.APIApproved:
		c = condition(kind, true, "ApprovedAnnotation", message)
	case apihelpers.APIApprovalBypassed:
		c = condition(kind, false, "UnapprovedAnnotation", message)
	case apihelpers.APIApprovalMissing:
		c = condition(kind, false, "MissingAnnotation", message)
	default:
		c = condition(kind, false, "InvalidAnnotation", message)
	}
	return &c
}
