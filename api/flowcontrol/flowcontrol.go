package flowcontrol

import (
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
)

func flowSchemas() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: flowv1.GroupName, Version: "v1", Kind: "FlowSchema", Plural: "flowschemas"},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &flowv1.FlowSchema{} },
			NewList:        func() runtime.Object { return &flowv1.FlowSchemaList{} },
		},
		Strategy: api.Strategy{
			Default:  api.Typed(func(s *flowv1.FlowSchema) { defaults.Set(&s.Spec.MatchingPrecedence, 1000) }),
			Validate: api.Check(validateFlowSchema),
			Status: api.StatusOf(
				func(s *flowv1.FlowSchema) *flowv1.FlowSchemaStatus { return &s.Status },
				(*flowv1.FlowSchemaStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(func(s, _ *flowv1.FlowSchema) field.ErrorList {
				return validateFlowConditions(s.Status.Conditions)
			})),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("PriorityLevel", "string",
					flowv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
				table.Column("MatchingPrecedence", "string",
					flowv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
				table.Column("DistinguisherMethod", "string",
					flowv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
				table.Age,
				table.Column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
			},
			Cells: api.Row(func(s *flowv1.FlowSchema) []any {
				method, missing := table.None, "?"
				if s.Spec.DistinguisherMethod != nil {
					method = string(s.Spec.DistinguisherMethod.Type)
				}
				for _, c := range s.Status.Conditions {
					if c.Type == flowv1.FlowSchemaConditionDangling {
						missing = string(c.Status)
					}
				}
				return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method,
					table.AgeOf(s.CreationTimestamp), missing}
			}),
		},
	}
}

func priorityLevels() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: flowv1.GroupName, Version: "v1", Kind: "PriorityLevelConfiguration",
			Plural: "prioritylevelconfigurations",
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &flowv1.PriorityLevelConfiguration{} },
			NewList:        func() runtime.Object { return &flowv1.PriorityLevelConfigurationList{} },
		},
		Strategy: api.Strategy{
			Default:  api.Typed(defaultPriorityLevel),
			Validate: api.Check(validatePriorityLevel),
			Status: api.StatusOf(
				func(l *flowv1.PriorityLevelConfiguration) *flowv1.PriorityLevelConfigurationStatus {
					return &l.Status
				},
				(*flowv1.PriorityLevelConfigurationStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(func(l, _ *flowv1.PriorityLevelConfiguration) field.ErrorList {
				return validateLevelConditions(l.Status.Conditions)
			})),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Type", "string", flowv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
				table.Column("NominalConcurrencyShares", "string",
					flowv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
				table.Column("Queues", "string", flowv1.QueuingConfiguration{}.SwaggerDoc()["queues"]),
				table.Column("HandSize", "string", flowv1.QueuingConfiguration{}.SwaggerDoc()["handSize"]),
				table.Column("QueueLengthLimit", "string",
					flowv1.QueuingConfiguration{}.SwaggerDoc()["queueLengthLimit"]),
				table.Age,
			},
			Cells: api.Row(func(l *flowv1.PriorityLevelConfiguration) []any {
				cells := []any{l.Name, string(l.Spec.Type), table.None, table.None, table.None, table.None,
					table.AgeOf(l.CreationTimestamp)}
				if limited := l.Spec.Limited; limited != nil {
					cells[2] = int64(ptr.Deref(limited.NominalConcurrencyShares, 0))
					if q := limited.LimitResponse.Queuing; q != nil {
						cells[3], cells[4], cells[5] = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
					}
				}
				return cells
			}),
		},
	}
}

func defaultPriorityLevel(l *flowv1.PriorityLevelConfiguration) {
	if e := l.Spec.Exempt; e != nil {
		defaults.SetPtr(&e.NominalConcurrencyShares, 0)
		defaults.SetPtr(&e.LendablePercent, 0)
	}
	limited := l.Spec.Limited
	if limited == nil {
		return
	}
	defaults.SetPtr(&limited.NominalConcurrencyShares, 30)
	defaults.SetPtr(&limited.LendablePercent, 0)
	if q := limited.LimitResponse.Queuing; q != nil {
		defaults.Set(&q.Queues, 64)
		defaults.Set(&q.HandSize, 8)
		defaults.Set(&q.QueueLengthLimit, 50)
	}
}
