package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// validatePodResourceName checks a resource that a pod may request as a whole.
func validatePodResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	if errs := resourcelist.ValidateName(name, path); len(errs) > 0 {
		return errs
	}
	if !podresource.IsSupportedPodLevelResource(name) {
		return field.ErrorList{field.NotSupported(path, name,
			slices.Sorted(maps.Keys(podresource.SupportedPodLevelResources())))}
	}
	return nil
}

func validateContainerResources(r *corev1.ResourceRequirements, claims map[string]bool,
	path *field.Path) field.ErrorList {
	errs := validateResources(r, resourcelist.ValidateContainerName, path)
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
		errs = append(errs, resourcelist.ValidateQuantity(name, q, fldPath)...)
		if resourcelist.IsHugePage(name) {
			hugePages = true
			errs = append(errs, resourcelist.ValidateHugePages(name, q, fldPath)...)
		}
	}
	for _, name := range resourcelist.SortedNames(r.Limits) {
		amount(name, r.Limits[name], limits.Key(string(name)))
	}
	for _, name := range resourcelist.SortedNames(r.Requests) {
		if field.Enough(errs) {
			break
		}
		q := r.Requests[name]
		amount(name, q, requests.Key(string(name)))
		limit, limited := r.Limits[name]
		switch {
		case limited && q.Cmp(limit) != 0 && !resourcelist.CanOvercommit(name):
			errs = append(errs,
				field.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name,
					limit.String())))
		case limited && q.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s "+
				"limit of %s", name, limit.String())))
		case !limited && !resourcelist.CanOvercommit(name):
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
