package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// nativeResource reports whether Kubernetes itself counts a resource, as opposed to a device plugin or an operator.
func nativeResource(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func isHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isExtended(name corev1.ResourceName) bool {
	return !nativeResource(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// overcommitted reports whether a container may use more of a resource than it requests.
func overcommitted(name corev1.ResourceName) bool {
	return nativeResource(name) && !isHugePage(name)
}

// standardResources lists Kubernetes' resources without a domain, and whether a container or a quota may use them.
var standardResources = map[corev1.ResourceName]struct{ container, quota bool }{
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

// countedResources are numbers of objects.
var countedResources = []corev1.ResourceName{
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets,
	corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts,
	corev1.ResourceServicesLoadBalancers,
}

func isQuotaHugePage(name corev1.ResourceName) bool {
	return isHugePage(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// validateAnyResourceName checks the form of a resource's name. Without a domain, it must be one of
// Kubernetes' own.
func validateAnyResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := validate.Complaints(path, name, naming.IsQualifiedName(string(name))); len(errs) > 0 {
		return errs
	}
	_, standard := standardResources[name]
	if !strings.Contains(string(name), "/") && !standard && !isQuotaHugePage(name) {
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return nil
}

// ValidateResourceName checks a resource that a container may request.
func ValidateResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := validateAnyResourceName(name, path)
	switch {
	case !strings.Contains(string(name), "/"):
		if !standardResources[name].container && !isHugePage(name) {
			errs = append(errs, field.Invalid(path, name, "must be a standard resource for containers"))
		}
	case !nativeResource(name) && !isExtended(name):
		errs = append(errs, field.Invalid(path, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// validatePodResourceName checks a resource that a pod may request as a whole.
func validatePodResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := validateAnyResourceName(name, path); len(errs) > 0 {
		return errs
	}
	if !podresource.IsSupportedPodLevelResource(name) {
		return field.ErrorList{field.NotSupported(path, name,
			slices.Sorted(maps.Keys(podresource.SupportedPodLevelResources())))}
	}
	return nil
}

// validateQuotaResourceName checks a resource that a quota may limit.
func validateQuotaResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := validateAnyResourceName(name, path)
	if !strings.Contains(string(name), "/") && !standardResources[name].quota && !isQuotaHugePage(name) {
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
	if (isExtended(name) || slices.Contains(countedResources, name)) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, q, "must be an integer"))
	}
	return errs
}

// validateHugePages requires whole pages of the size in the resource's name.
func validateHugePages(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	size, err := limits.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	// Sizes that do not fit into an int64 count as 0.
	if err == nil && size.Value() > 0 && size.MilliValue()%1000 == 0 && q.Value()%size.Value() == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s",
		q.String(), name))}
}

// sortedNames returns the names in a fixed order, so that the order of errors is stable.
func sortedNames(list corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func validateContainerResources(r *corev1.ResourceRequirements, claims map[string]bool,
	path *field.Path) field.ErrorList {
	errs := validateResources(r, ValidateResourceName, path)
	return append(errs, validateResourceClaims(r.Claims, claims, path.Child("claims"))...)
}

// validateResources checks names and amounts, and requests against limits.
func validateResources(r *corev1.ResourceRequirements,
	validateName func(corev1.ResourceName, *field.Path) field.ErrorList, path *field.Path) field.ErrorList {
	if len(r.Limits)+len(r.Requests) == 0 {
		return nil
	}
	var errs field.ErrorList
	limits, requests := path.Child("limits"), path.Child("requests")
	cpuOrMemory, hugePages := false, false
	amount := func(name corev1.ResourceName, q resource.Quantity, fldPath *field.Path) {
		cpuOrMemory = cpuOrMemory || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		errs = append(errs, field.Checked(validateName, name, fldPath)...)
		errs = append(errs, ValidateQuantity(name, q, fldPath)...)
		if isHugePage(name) {
			hugePages = true
			errs = append(errs, validateHugePages(name, q, fldPath)...)
		}
	}
	for _, name := range sortedNames(r.Limits) {
		amount(name, r.Limits[name], limits.Key(string(name)))
	}
	for _, name := range sortedNames(r.Requests) {
		if field.Enough(errs) {
			break
		}
		q := r.Requests[name]
		amount(name, q, requests.Key(string(name)))
		limit, limited := r.Limits[name]
		switch {
		case limited && q.Cmp(limit) != 0 && !overcommitted(name):
			errs = append(errs,
				field.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name,
					limit.String())))
		case limited && q.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s "+
				"limit of %s", name, limit.String())))
		case !limited && !overcommitted(name):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		}
	}
	if hugePages && !cpuOrMemory {
		errs = append(errs, field.Forbidden(path, "HugePages require cpu or memory"))
	}
	return errs
}

func validateResourceClaims(used []corev1.ResourceClaim, claims map[string]bool, path *field.Path) field.ErrorList {
	type request [2]string // a claim and one of its requests; "" means all requests
	requestOf := func(c *corev1.ResourceClaim) request { return request{c.Name, c.Request} }
	var errs field.ErrorList
	var requests, names validate.Seen
	for i, c := range used {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(idxPath, ""))
			continue
		}
		if c.Request != "" {
			errs = append(errs, validate.DnsLabel(idxPath.Child("request"), c.Request)...)
		}
		if validate.RepeatedBy(&requests, used[:i], requestOf(&c), requestOf) ||
			validate.RepeatedBy(&requests, used[:i], request{c.Name, ""}, requestOf) ||
			c.Request == "" && validate.RepeatedBy(&names, used[:i], c.Name, func(o *corev1.ResourceClaim) string {
				return o.Name
			}) {
			errs = append(errs, field.Duplicate(idxPath, c.Name))
		}
		if !claims[c.Name] {
			missing := field.NotFound(idxPath, c.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if names := slices.Sorted(maps.Keys(claims)); len(names) > 0 {
				missing.Detail = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(names, ", ")
			}
			errs = append(errs, missing)
		}
	}
	return errs
}

func validateResizePolicy(policies []corev1.ContainerResizePolicy, restart corev1.RestartPolicy,
	path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.ResourceName]bool{}
	for i, p := range policies {
		if field.Enough(errs) {
			break
		}
		if seen[p.ResourceName] {
			errs = append(errs, field.Duplicate(path.Index(i), p.ResourceName))
		}
		seen[p.ResourceName] = true
		errs = append(errs, validate.RequiredOneOf(path, p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, validate.RequiredOneOf(path, p.RestartPolicy, corev1.NotRequired,
			corev1.RestartContainer)...)
		if restart == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			errs = append(errs,
				field.Invalid(path, p.RestartPolicy, "must be 'NotRequired' when `restartPolicy` is 'Never'"))
		}
	}
	return errs
}
