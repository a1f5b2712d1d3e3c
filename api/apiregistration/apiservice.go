package apiregistration

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

type apiService = apiregistrationv1.APIService

// The highest priorities of a group and of a version.
const (
	maxGroupPriority   = 20000
	maxVersionPriority = 1000
)

func apiServices() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: apiregistrationv1.GroupName, Version: "v1", Kind: "APIService",
			Plural:     "apiservices",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &apiService{} },
			NewList: func() runtime.Object { return &apiregistrationv1.APIServiceList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(s *apiService) {
				if s.Spec.Service != nil {
					defaults.SetPtr(&s.Spec.Service.Port, 443)
				}
			}),
			ValidateName: func(name string, _ bool) []string { return path.IsValidPathSegmentName(name) },
			Validate:     api.Check(validateAPIService),
			Status: api.StatusOf(
				func(s *apiService) *apiregistrationv1.APIServiceStatus { return &s.Status },
				(*apiregistrationv1.APIServiceStatus).DeepCopy,
			).StartingAs(api.Typed(startAPIService)).CheckedBy(api.CheckUpdate(validateAPIServiceStatus)),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Service", "string", "The reference to the service that hosts this API endpoint."),
				table.Column("Available", "string", "Whether this service is available."),
				table.Age,
			},
			Cells: api.Row(func(s *apiService) []any {
				service := "Local"
				if ref := s.Spec.Service; ref != nil {
					service = ref.Namespace + "/" + ref.Name
				}
				return []any{s.Name, service, availability(s), table.AgeOf(s.CreationTimestamp)}
			}),
		},
	}
}

// availability summarizes the condition Available in a word or two.
func availability(s *apiService) string {
	i := slices.IndexFunc(s.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
		return c.Type == apiregistrationv1.Available
	})
	if i < 0 {
		return string(apiregistrationv1.ConditionUnknown)
	}
	c := s.Status.Conditions[i]
	if c.Status == apiregistrationv1.ConditionTrue || c.Reason == "" {
		return string(c.Status)
	}
	return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
}

// startAPIService marks a new APIService that this server itself serves as available.
func startAPIService(s *apiService) {
	if s.Spec.Service == nil {
		s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available,
			Status: apiregistrationv1.ConditionTrue, LastTransitionTime: s.CreationTimestamp, Reason: "Local",
			Message: "Local APIServices are always available"}}
	}
}

func validateAPIService(s *apiService) field.ErrorList {
	var errs field.ErrorList
	spec, fldPath := &s.Spec, field.NewPath("spec")
	if want := spec.Version + "." + spec.Group; s.Name != want && len(path.IsValidPathSegmentName(s.Name)) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name,
			fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)))
	}
	switch group := fldPath.Child("group"); {
	case spec.Group != "":
		errs = append(errs, validate.Complaints(group, spec.Group, naming.IsDNS1123Subdomain(spec.Group))...)
	case spec.Version != "v1":
		errs = append(errs, field.Required(group, "only v1 may have an empty group and it better be legacy kube"))
	}
	errs = append(errs, validate.Complaints(fldPath.Child("version"), spec.Version,
		utilvalidation.IsDNS1035Label(spec.Version))...)
	if p := spec.GroupPriorityMinimum; p <= 0 || p > maxGroupPriority {
		errs = append(errs,
			field.Invalid(fldPath.Child("groupPriorityMinimum"), p, "must be positive and less than 20000"))
	}
	if p := spec.VersionPriority; p <= 0 || p > maxVersionPriority {
		errs = append(errs, field.Invalid(fldPath.Child("versionPriority"), p, "must be positive and less than 1000"))
	}
	if spec.Service == nil {
		return append(errs, validateLocal(spec, fldPath)...)
	}
	return append(errs, validateRemote(spec, fldPath)...)
}

// validateLocal rejects fields that configure the verification of another server.
func validateLocal(spec *apiregistrationv1.APIServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.CABundle) != 0 {
		errs = append(errs, field.Invalid(path.Child("caBundle"), fmt.Sprintf("%d bytes", len(spec.CABundle)),
			"local APIServices may not have a caBundle"))
	}
	if spec.InsecureSkipTLSVerify {
		errs = append(errs, field.Invalid(path.Child("insecureSkipTLSVerify"), true,
			"local APIServices may not have insecureSkipTLSVerify"))
	}
	return errs
}

func validateRemote(spec *apiregistrationv1.APIServiceSpec, path *field.Path) field.ErrorList {
	servicePath := path.Child("service")
	errs := validate.Required(servicePath.Child("namespace"), spec.Service.Namespace)
	errs = append(errs, validate.Required(servicePath.Child("name"), spec.Service.Name)...)
	port := int32(0)
	if spec.Service.Port != nil {
		port = *spec.Service.Port
	}
	if complaints := utilvalidation.IsValidPortNum(int(port)); len(complaints) > 0 {
		errs = append(errs, field.Invalid(servicePath.Child("port"), port,
			"port is not valid: "+strings.Join(complaints, ", ")))
	}
	if spec.InsecureSkipTLSVerify && len(spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(path.Child("insecureSkipTLSVerify"), true,
			"may not be true if caBundle is present"))
	}
	return errs
}

func validateAPIServiceStatus(s, _ *apiService) field.ErrorList {
	var errs field.ErrorList
	for i, c := range s.Status.Conditions {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.OneOf(field.NewPath("status", "conditions").Index(i).Child("status"), c.Status,
			apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown)...)
	}
	return errs
}
