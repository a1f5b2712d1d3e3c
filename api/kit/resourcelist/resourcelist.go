// Package resourcelist checks the names of compute resources, such as cpu or hugepages-2Mi, and their quantities. Pods,
// nodes, quotas, limit ranges and volumes have lists of them (corev1.ResourceList). A resource's name decides where it
// may be used and whether its quantities are integers. Errors equal Kubernetes'.
package resourcelist

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// IsNative reports whether Kubernetes itself counts a resource, as opposed to a device plugin or an operator.
func IsNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// IsHugePage reports whether a resource counts huge pages of one size.
func IsHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isExtended(name corev1.ResourceName) bool {
	return !IsNative(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// CanOvercommit reports whether a container may use more of a resource than it requests.
func CanOvercommit(name corev1.ResourceName) bool {
	return IsNative(name) && !IsHugePage(name)
}

// standard lists Kubernetes' resources without a domain, and whether a container or a quota may use them.
var standard = map[corev1.ResourceName]struct{ container, quota bool }{
	corev1.ResourceCPU:                      {container: true, quota: true},
	corev1.ResourceMemory:                   {container: true, quota: true},
	corev1.ResourceEphemeralStorage:         {container: true, quota: true},
	corev1.ResourceStorage:                  {},
	corev1.ResourceRequestsCPU:              {quota: true},
	corev1.ResourceRequestsMemory:           {quota: true},
	corev1.ResourceRequestsStorage:          {quota: true},
	corev1.ResourceRequestsEphemeralStorage: {quota: true},
	corev1.ResourceLimitsCPU:                {quota: true},
	corev1.ResourceLimitsMemory:             {quota: true},
	corev1.ResourceLimitsEphemeralStorage:   {quota: true},
	corev1.ResourcePods:                     {quota: true},
	corev1.ResourceQuotas:                   {quota: true},
	corev1.ResourceServices:                 {quota: true},
	corev1.ResourceReplicationControllers:   {quota: true},
	corev1.ResourceSecrets:                  {quota: true},
	corev1.ResourceConfigMaps:               {quota: true},
	corev1.ResourcePersistentVolumeClaims:   {quota: true},
	corev1.ResourceServicesNodePorts:        {quota: true},
	corev1.ResourceServicesLoadBalancers:    {quota: true},
}

// counted lists the resources that are numbers of objects.
var counted = []corev1.ResourceName{
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets,
	corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts,
	corev1.ResourceServicesLoadBalancers,
}

func isQuotaHugePage(name corev1.ResourceName) bool {
	return IsHugePage(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// ValidateName checks the form of a resource's name. Without a domain, it must be one of Kubernetes' own.
func ValidateName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := validate.Complaints(path, name, naming.IsQualifiedName(string(name))); len(errs) > 0 {
		return errs
	}
	_, isStandard := standard[name]
	if !strings.Contains(string(name), "/") && !isStandard && !isQuotaHugePage(name) {
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return nil
}

// ValidateContainerName checks a resource that a container may request.
func ValidateContainerName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := ValidateName(name, path)
	switch {
	case !strings.Contains(string(name), "/"):
		if !standard[name].container && !IsHugePage(name) {
			errs = append(errs, field.Invalid(path, name, "must be a standard resource for containers"))
		}
	case !IsNative(name) && !isExtended(name):
		errs = append(errs, field.Invalid(path, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// IsStandardInQuota reports whether a resource is one of Kubernetes' own, without a domain, that a quota may limit.
func IsStandardInQuota(name corev1.ResourceName) bool { return standard[name].quota }

// ValidateQuotaName checks a resource that a quota may limit.
func ValidateQuotaName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := ValidateName(name, path)
	if !strings.Contains(string(name), "/") && !IsStandardInQuota(name) && !isQuotaHugePage(name) {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource for quota"))
	}
	return errs
}

// ValidateQuantity checks an amount: it must not be negative, and must be an integer for resources that are counted.
func ValidateQuantity(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(path, q.String(), "must be greater than or equal to 0"))
	}
	if (isExtended(name) || slices.Contains(counted, name)) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q, "must be an integer"))
	}
	return errs
}

// ValidateHugePages requires whole pages of the size in the resource's name.
func ValidateHugePages(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	size, err := limits.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	// Sizes that do not fit into an int64 count as 0.
	if err == nil && size.Value() > 0 && size.MilliValue()%1000 == 0 && q.Value()%size.Value() == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s",
		q.String(), name))}
}

// SortedNames returns the names in a fixed order, so that the order of errors is stable.
func SortedNames(list corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Round rounds quantities up to thousandths, Kubernetes' finest unit.
func Round(list corev1.ResourceList) {
	for name, q := range list {
		if q.RoundUp(resource.Milli) {
			continue
		}
		list[name] = q
	}
}
