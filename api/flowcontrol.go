package api

import (
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
)

func flowSchemas() *Resource {
	return &Resource{
		Group: flowv1.GroupName, Version: "v1", Kind: "FlowSchema", Plural: "flowschemas",
		New:     func() Object { return &flowv1.FlowSchema{} },
		NewList: func() runtime.Object { return &flowv1.FlowSchemaList{} },

		Default:  with(func(s *flowv1.FlowSchema) { setDefault(&s.Spec.MatchingPrecedence, 1000) }),
		Validate: checked(validateFlowSchema),
		Status: statusOf(
			func(s *flowv1.FlowSchema) *flowv1.FlowSchemaStatus { return &s.Status },
			(*flowv1.FlowSchemaStatus).DeepCopy,
		).checkedBy(checked2(func(s, _ *flowv1.FlowSchema) field.ErrorList { return validateFlowConditions(s.Status.Conditions) })),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("PriorityLevel", "string", flowv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
			column("MatchingPrecedence", "string", flowv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
			column("DistinguisherMethod", "string", flowv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
			ageColumn,
			column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
		},
		Cells: row(func(s *flowv1.FlowSchema) []any {
			method, missing := none, "?"
			if s.Spec.DistinguisherMethod != nil {
				method = string(s.Spec.DistinguisherMethod.Type)
			}
			for _, c := range s.Status.Conditions {
				if c.Type == flowv1.FlowSchemaConditionDangling {
					missing = string(c.Status)
				}
			}
			return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method, age(s.CreationTimestamp), missing}
		}),
	}
}

func priorityLevels() *Resource {
	return &Resource{
		Group: flowv1.GroupName, Version: "v1", Kind: "PriorityLevelConfiguration", Plural: "prioritylevelconfigurations",
		New:     func() Object { return &flowv1.PriorityLevelConfiguration{} },
		NewList: func() runtime.Object { return &flowv1.PriorityLevelConfigurationList{} },

		Default:  with(defaultPriorityLevel),
		Validate: checked(validatePriorityLevel),
		Status: statusOf(
			func(l *flowv1.PriorityLevelConfiguration) *flowv1.PriorityLevelConfigurationStatus { return &l.Status },
			(*flowv1.PriorityLevelConfigurationStatus).DeepCopy,
		).checkedBy(checked2(func(l, _ *flowv1.PriorityLevelConfiguration) field.ErrorList {
			return validateLevelConditions(l.Status.Conditions)
		})),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Type", "string", flowv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
			column("NominalConcurrencyShares", "string", flowv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
			column("Queues", "string", flowv1.QueuingConfiguration{}.SwaggerDoc()["queues"]),
			column("HandSize", "string", flowv1.QueuingConfiguration{}.SwaggerDoc()["handSize"]),
			column("QueueLengthLimit", "string", flowv1.QueuingConfiguration{}.SwaggerDoc()["queueLengthLimit"]),
			ageColumn,
		},
		Cells: row(func(l *flowv1.PriorityLevelConfiguration) []any {
			cells := []any{l.Name, string(l.Spec.Type), none, none, none, none, age(l.CreationTimestamp)}
			if limited := l.Spec.Limited; limited != nil {
				cells[2] = int64(deref(limited.NominalConcurrencyShares))
				if q := limited.LimitResponse.Queuing; q != nil {
					cells[3], cells[4], cells[5] = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
				}
			}
			return cells
		}),
	}
}

func defaultPriorityLevel(l *flowv1.PriorityLevelConfiguration) {
	if e := l.Spec.Exempt; e != nil {
		setDefaultPtr(&e.NominalConcurrencyShares, 0)
		setDefaultPtr(&e.LendablePercent, 0)
	}
	limited := l.Spec.Limited
	if limited == nil {
		return
	}
	setDefaultPtr(&limited.NominalConcurrencyShares, 30)
	setDefaultPtr(&limited.LendablePercent, 0)
	if q := limited.LimitResponse.Queuing; q != nil {
		setDefault(&q.Queues, 64)
		setDefault(&q.HandSize, 8)
		setDefault(&q.QueueLengthLimit, 50)
	}
}
