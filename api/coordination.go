package api

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func leases() *Resource {
	return &Resource{
		Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Plural: "leases", Namespaced: true,
		New:            func() Object { return &coordinationv1.Lease{} },
		NewList:        func() runtime.Object { return &coordinationv1.LeaseList{} },
		CreateOnUpdate: true,
		Conditional:    true,
		Validate:       checked(validateLease),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Holder", "string", coordinationv1.LeaseSpec{}.SwaggerDoc()["holderIdentity"]),
			ageColumn,
		},
		Cells: row(func(l *coordinationv1.Lease) []any {
			holder := ""
			if l.Spec.HolderIdentity != nil {
				holder = *l.Spec.HolderIdentity
			}
			return []any{l.Name, holder, age(l.CreationTimestamp)}
		}),
	}
}

func validateLease(l *coordinationv1.Lease) field.ErrorList {
	var errs field.ErrorList
	path, spec := field.NewPath("spec"), &l.Spec
	if seconds := spec.LeaseDurationSeconds; seconds != nil {
		errs = append(errs, positive(path.Child("leaseDurationSeconds"), *seconds)...)
	}
	errs = append(errs, nonNegativePtr(path.Child("leaseTransitions"), spec.LeaseTransitions)...)
	strategy := ""
	if spec.Strategy != nil {
		strategy = string(*spec.Strategy)
		at := path.Child("strategy")
		if strategy == "" {
			errs = append(errs, field.Required(at, ""))
		} else {
			errs = append(errs, invalid(at, strategy, naming.IsQualifiedName(strategy))...)
		}
	}
	if spec.PreferredHolder != nil && *spec.PreferredHolder != "" && strategy == "" {
		errs = append(errs, field.Forbidden(path.Child("preferredHolder"), "may only be specified when `strategy` is defined"))
	}
	return errs
}
