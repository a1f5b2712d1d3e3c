package coordination

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func leases() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Plural: "leases", Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &coordinationv1.Lease{} },
			NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate:  true,
			Conditional:     true,
			GenericMetadata: true,
			Validate:        api.Check(validateLease),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]),
				table.Age,
			},
			Cells: api.Row(func(l *coordinationv1.Lease) []any {
				holder := ""
				if l.Spec.HolderIdentity != nil {
					holder = *l.Spec.HolderIdentity
				}
				return []any{l.Name, holder, table.AgeOf(l.CreationTimestamp)}
			}),
		},
	}
}

func validateLease(l *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	path, spec := field.NewPath("spec"), &l.Spec
	if seconds := spec.LeaseDurationSeconds; seconds != nil {
		errs = append(errs, validate.Positive(path.Child("leaseDurationSeconds"), *seconds)...)
	}
	errs = append(errs, validate.NonNegativePtr(path.Child("leaseTransitions"), spec.LeaseTransitions)...)
	strategy := ""
	if spec.Strategy != nil {
		strategy = string(*spec.Strategy)
		strategyPath := path.Child("strategy")
		if strategy == "" {
			errs = append(errs, field.Required(strategyPath, ""))
		} else {
			errs = append(errs, validate.Complaints(strategyPath, strategy, naming.IsQualifiedName(strategy))...)
		}
	}
	if spec.PreferredHolder != nil && *spec.PreferredHolder != "" && strategy == "" {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"),
			"may only be specified when `strategy` is defined"))
	}
	return errs
}
