// Package mandatory has the flow schemas and priority levels that every server has and that cannot be changed.
// Validation compares objects with them. The server creates them and falls back to them.
package mandatory

import (
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PriorityLevels returns the levels that the classification of requests needs. Their specs are fixed, except for the
// shares of the exempt level.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#mandatory-configuration-objects
func PriorityLevels() []*flowv1.PriorityLevelConfiguration {
	return []*flowv1.PriorityLevelConfiguration{
		{
			ObjectMeta: metav1.ObjectMeta{Name: flowv1.PriorityLevelConfigurationNameExempt},
			Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementExempt,
				Exempt: &flowv1.ExemptPriorityLevelConfiguration{
					NominalConcurrencyShares: new(int32(0)), LendablePercent: new(int32(0)),
				}},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: flowv1.PriorityLevelConfigurationNameCatchAll},
			Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementLimited,
				Limited: &flowv1.LimitedPriorityLevelConfiguration{
					NominalConcurrencyShares: new(int32(5)), LendablePercent: new(int32(0)),
					LimitResponse: flowv1.LimitResponse{Type: flowv1.LimitResponseTypeReject},
				}},
		},
	}
}

// FlowSchemas returns the schemas of the mandatory levels: for system:masters, and for requests that no other schema
// matches.
func FlowSchemas() []*flowv1.FlowSchema {
	schema := func(name string, precedence int32, groups ...string) *flowv1.FlowSchema {
		rule := flowv1.PolicyRulesWithSubjects{
			ResourceRules: []flowv1.ResourcePolicyRule{{
				Verbs: []string{flowv1.VerbAll}, APIGroups: []string{flowv1.APIGroupAll},
				Resources:  []string{flowv1.ResourceAll},
				Namespaces: []string{flowv1.NamespaceEvery}, ClusterScope: true,
			}},
			NonResourceRules: []flowv1.NonResourcePolicyRule{{Verbs: []string{flowv1.VerbAll},
				NonResourceURLs: []string{flowv1.NonResourceAll}}},
		}
		for _, group := range groups {
			rule.Subjects = append(rule.Subjects, flowv1.Subject{Kind: flowv1.SubjectKindGroup,
				Group: &flowv1.GroupSubject{Name: group}})
		}
		return &flowv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowv1.FlowSchemaSpec{
			MatchingPrecedence:         precedence,
			PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: name},
			Rules:                      []flowv1.PolicyRulesWithSubjects{rule},
		}}
	}
	rest := schema(flowv1.FlowSchemaNameCatchAll, flowv1.FlowSchemaMaxMatchingPrecedence, "system:unauthenticated",
		"system:authenticated")
	rest.Spec.DistinguisherMethod = &flowv1.FlowDistinguisherMethod{Type: flowv1.FlowDistinguisherMethodByUserType}
	return []*flowv1.FlowSchema{schema(flowv1.FlowSchemaNameExempt, 1, "system:masters"), rest}
}

// Spec returns the required spec of the level l: the spec of fixed, with l's own shares if it is exempt.
func Spec(fixed, l *flowv1.PriorityLevelConfiguration) *flowv1.PriorityLevelConfigurationSpec {
	spec := fixed.Spec.DeepCopy()
	if l.Spec.Exempt != nil && spec.Exempt != nil {
		spec.Exempt = l.Spec.Exempt.DeepCopy()
	}
	return spec
}
