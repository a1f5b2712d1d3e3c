package api

import (
	"fmt"

	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/api/field"
)

// MandatoryPriorityLevels are those without which requests cannot be judged. Their specs are fixed, but
// for the shares of the one named exempt.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#mandatory-configuration-objects
func MandatoryPriorityLevels() []*flowv1.PriorityLevelConfiguration {
	return []*flowv1.PriorityLevelConfiguration{
		{
			ObjectMeta: metav1.ObjectMeta{Name: flowv1.PriorityLevelConfigurationNameExempt},
			Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementExempt, Exempt: &flowv1.ExemptPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(0)), LendablePercent: new(int32(0)),
			}},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: flowv1.PriorityLevelConfigurationNameCatchAll},
			Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementLimited, Limited: &flowv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: new(int32(5)), LendablePercent: new(int32(0)),
				LimitResponse: flowv1.LimitResponse{Type: flowv1.LimitResponseTypeReject},
			}},
		},
	}
}

// MandatoryFlowSchemas are the schemas of the mandatory levels: for system:masters, and for what no other
// schema matches.
func MandatoryFlowSchemas() []*flowv1.FlowSchema {
	schema := func(name string, precedence int32, groups ...string) *flowv1.FlowSchema {
		rule := flowv1.PolicyRulesWithSubjects{
			ResourceRules: []flowv1.ResourcePolicyRule{{
				Verbs: []string{flowv1.VerbAll}, APIGroups: []string{flowv1.APIGroupAll}, Resources: []string{flowv1.ResourceAll},
				Namespaces: []string{flowv1.NamespaceEvery}, ClusterScope: true,
			}},
			NonResourceRules: []flowv1.NonResourcePolicyRule{{Verbs: []string{flowv1.VerbAll}, NonResourceURLs: []string{flowv1.NonResourceAll}}},
		}
		for _, group := range groups {
			rule.Subjects = append(rule.Subjects, flowv1.Subject{Kind: flowv1.SubjectKindGroup, Group: &flowv1.GroupSubject{Name: group}})
		}
		return &flowv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: flowv1.FlowSchemaSpec{
			MatchingPrecedence:         precedence,
			PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: name},
			Rules:                      []flowv1.PolicyRulesWithSubjects{rule},
		}}
	}
	rest := schema(flowv1.FlowSchemaNameCatchAll, flowv1.FlowSchemaMaxMatchingPrecedence, "system:unauthenticated", "system:authenticated")
	rest.Spec.DistinguisherMethod = &flowv1.FlowDistinguisherMethod{Type: flowv1.FlowDistinguisherMethodByUserType}
	return []*flowv1.FlowSchema{schema(flowv1.FlowSchemaNameExempt, 1, "system:masters"), rest}
}

// validateMandatorySchema refuses to change what is fixed.
func validateMandatorySchema(s *flowv1.FlowSchema) field.ErrorList {
	for _, fixed := range MandatoryFlowSchemas() {
		if s.Name == fixed.Name && !equal.Semantic(&s.Spec, &fixed.Spec) {
			return mandatory(s.Name, s.Spec)
		}
	}
	return nil
}

func validateMandatoryLevel(l *flowv1.PriorityLevelConfiguration) field.ErrorList {
	for _, fixed := range MandatoryPriorityLevels() {
		if l.Name == fixed.Name && !equal.Semantic(&l.Spec, MandatorySpec(fixed, l)) {
			return mandatory(l.Name, l.Spec)
		}
	}
	return nil
}

func mandatory(name string, spec any) field.ErrorList {
	return field.ErrorList{field.Invalid(field.NewPath("spec"), spec, fmt.Sprintf("spec of '%s' must equal the fixed value", name))}
}

// MandatorySpec is what fixed asks of the level l: its own spec, with the shares of l if it is exempt.
func MandatorySpec(fixed, l *flowv1.PriorityLevelConfiguration) *flowv1.PriorityLevelConfigurationSpec {
	spec := fixed.Spec.DeepCopy()
	if l.Spec.Exempt != nil && spec.Exempt != nil {
		spec.Exempt = l.Spec.Exempt.DeepCopy()
	}
	return spec
}
