package api

import (
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
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
		),
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

func validateFlowSchema(s *flowv1.FlowSchema) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if n := s.Spec.MatchingPrecedence; n <= 0 || n > 10000 {
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), n, "must be a value between 1 and 10000"))
	} else if n == 1 && s.Name != "exempt" {
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), n, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if d := s.Spec.DistinguisherMethod; d != nil {
		errs = append(errs, oneOf(path.Child("distinguisherMethod", "type"), d.Type,
			flowv1.FlowDistinguisherMethodByNamespaceType, flowv1.FlowDistinguisherMethodByUserType)...)
	}
	errs = append(errs, required(path.Child("priorityLevelConfiguration", "name"), s.Spec.PriorityLevelConfiguration.Name)...)
	for i, r := range s.Spec.Rules {
		at := path.Child("rules").Index(i)
		if len(r.Subjects) == 0 {
			errs = append(errs, field.Required(at.Child("subjects"), "subjects must contain at least one value"))
		}
		for j, subject := range r.Subjects {
			errs = append(errs, oneOf(at.Child("subjects").Index(j).Child("kind"), subject.Kind,
				flowv1.SubjectKindGroup, flowv1.SubjectKindServiceAccount, flowv1.SubjectKindUser)...)
		}
		if len(r.ResourceRules)+len(r.NonResourceRules) == 0 {
			errs = append(errs, field.Required(at, "at least one of resourceRules and nonResourceRules has to be non-empty"))
		}
	}
	return errs
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
		),
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

func validatePriorityLevel(l *flowv1.PriorityLevelConfiguration) field.ErrorList {
	path, spec := field.NewPath("spec"), &l.Spec
	var errs field.ErrorList
	switch spec.Type {
	case flowv1.PriorityLevelEnablementExempt:
		if spec.Limited != nil {
			errs = append(errs, field.Forbidden(path.Child("limited"), "must be nil if the type is not Limited"))
		}
	case flowv1.PriorityLevelEnablementLimited:
		if spec.Exempt != nil {
			errs = append(errs, field.Forbidden(path.Child("exempt"), "must be nil if the type is Limited"))
		}
		if spec.Limited == nil {
			return append(errs, field.Required(path.Child("limited"), "must not be empty when type is Limited"))
		}
		errs = append(errs, validateLimited(spec.Limited, path.Child("limited"))...)
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), spec.Type, []flowv1.PriorityLevelEnablement{
			flowv1.PriorityLevelEnablementExempt, flowv1.PriorityLevelEnablementLimited}))
	}
	return errs
}

func validateLimited(l *flowv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := nonNegativePtr(path.Child("nominalConcurrencyShares"), l.NominalConcurrencyShares)
	if p := ptr.Deref(l.LendablePercent, 0); p < 0 || p > 100 {
		errs = append(errs, field.Invalid(path.Child("lendablePercent"), p, "must be between 0 and 100, inclusive"))
	}
	errs = append(errs, nonNegativePtr(path.Child("borrowingLimitPercent"), l.BorrowingLimitPercent)...)
	at, q := path.Child("limitResponse"), l.LimitResponse.Queuing
	switch l.LimitResponse.Type {
	case flowv1.LimitResponseTypeReject:
		if q != nil {
			errs = append(errs, field.Forbidden(at.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))
		}
	case flowv1.LimitResponseTypeQueue:
		if q == nil {
			return append(errs, field.Required(at.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))
		}
		at := at.Child("queuing")
		errs = append(errs, positive(at.Child("queueLengthLimit"), q.QueueLengthLimit)...)
		errs = append(errs, positive(at.Child("queues"), q.Queues)...)
		errs = append(errs, positive(at.Child("handSize"), q.HandSize)...)
		if q.HandSize > q.Queues {
			errs = append(errs, field.Invalid(at.Child("handSize"), q.HandSize, "should not be greater than queues"))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), l.LimitResponse.Type, []flowv1.LimitResponseType{flowv1.LimitResponseTypeQueue, flowv1.LimitResponseTypeReject}))
	}
	return errs
}
