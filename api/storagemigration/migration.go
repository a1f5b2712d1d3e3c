package storagemigration

import (
	"strings"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// storageVersionMigrations returns the kind of requests to rewrite all objects of a resource in its current storage
// version (KEP-4192).
func storageVersionMigrations() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: storagemigrationv1.GroupName, Version: "v1", Kind: "StorageVersionMigration",
			Plural: "storageversionmigrations",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &storagemigrationv1.StorageVersionMigration{} },
			NewList: func() runtime.Object { return &storagemigrationv1.StorageVersionMigrationList{} },
		},
		Strategy: api.Strategy{
			Conditional: true,
			Validate: api.Check(func(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
				path, resource := field.NewPath("spec", "resource"), m.Spec.Resource
				var errs field.ErrorList
				if complaints := utilvalidation.IsDNS1035Label(resource.Resource); len(complaints) > 0 {
					errs = append(errs,
						field.Invalid(path.Child("resource"), resource.Resource, strings.Join(complaints, ",")))
				}
				complaints := naming.IsDNS1123Subdomain(resource.Group)
				if resource.Group != "" && len(complaints) > 0 {
					errs = append(errs,
						field.Invalid(path.Child("group"), resource.Group, strings.Join(complaints, ",")))
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(func(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
				errs := validate.Unchanged(m.Spec.Resource.Group, old.Spec.Resource.Group, field.NewPath("group"))
				return append(errs, validate.Unchanged(m.Spec.Resource.Resource, old.Spec.Resource.Resource,
					field.NewPath("resource"))...)
			}),
			Status: api.StatusOf(
				func(m *storagemigrationv1.StorageVersionMigration) *storagemigrationv1.StorageVersionMigrationStatus {
					return &m.Status
				},
				(*storagemigrationv1.StorageVersionMigrationStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(validateMigrationStatus)),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
				table.Column("Resource", "string", "Fully qualified resource to migrate"),
			},
			Cells: api.Row(func(m *storagemigrationv1.StorageVersionMigration) []any {
				return []any{m.Name, m.Spec.Resource.Resource + "." + m.Spec.Resource.Group}
			}),
		},
	}
}

// validateMigrationStatus checks that a migration ends once, in success or failure.
func validateMigrationStatus(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	path := field.NewPath("status")
	conditionsPath, version := path.Child("conditions"), path.Child("resourceVersion")
	var errs field.ErrorList
	if v := m.Status.ResourceVersion; v != "" { // a migration that failed at its start has none
		if _, err := resourceversion.CompareResourceVersion(v, v); err != nil {
			errs = append(errs, field.Invalid(version, v, err.Error()))
		}
	}
	errs = append(errs, metav1validation.ValidateConditions(m.Status.Conditions, conditionsPath.Plain())...)
	if was := old.Status.ResourceVersion; was != "" {
		errs = append(errs, validate.Unchanged(m.Status.ResourceVersion, was, version)...)
	}
	is := func(m *storagemigrationv1.StorageVersionMigration, c storagemigrationv1.MigrationConditionType) bool {
		return apimeta.IsStatusConditionTrue(m.Status.Conditions, string(c))
	}
	const running, succeeded, failed = storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationSucceeded,
		storagemigrationv1.MigrationFailed
	for _, rule := range []struct {
		broken    bool
		complaint string
	}{
		{is(m, succeeded) && is(m, failed), "Both success and failed conditions cannot be true at the same time"},
		{is(m, succeeded) && is(m, running), "Running condition cannot be true when success condition is true"},
		{is(m, failed) && is(m, running), "Running condition cannot be true when failed condition is true"},
		{is(old, succeeded) && !is(m, succeeded), "Success condition cannot be set to false once it is true"},
		{is(old, failed) && !is(m, failed), "Failed condition cannot be set to false once it is true"},
	} {
		if rule.broken {
			errs = append(errs, field.Invalid(conditionsPath, m.Status.Conditions, rule.complaint))
		}
	}
	return errs
}
