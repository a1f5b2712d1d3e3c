package api

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validIP checks an address in a field older than today's stricter rules for new fields.
func validIP(path *field.Path, ip string) field.ErrorList {
	return utilvalidation.IsValidIPForLegacyField(path, ip, true, nil)
}

// nativeResource is one that Kubernetes itself counts, not a device plugin or operator.
func nativeResource(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func isHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isExtended(name corev1.ResourceName) bool {
	return !nativeResource(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// overcommitted says whether a container may use more of a resource than it requests.
func overcommitted(name corev1.ResourceName) bool {
	return nativeResource(name) && !isHugePage(name)
}

// validateResourceName checks a resource that a container may ask for.
func validateResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := invalid(path, name, utilvalidation.IsQualifiedName(string(name)))
	if len(errs) > 0 {
		return errs
	}
	switch {
	case strings.Contains(string(name), "/"):
		if !nativeResource(name) && !isExtended(name) {
			return field.ErrorList{field.Invalid(path, name, "doesn't follow extended resource name standard")}
		}
	case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, isHugePage(name):
	default:
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource for containers")}
	}
	return nil
}

// validateQuantity checks an amount: not negative, whole where parts make no sense.
func validateQuantity(name corev1.ResourceName, q resource.Quantity, path *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(path, q.String(), "must be greater than or equal to 0")}
	}
	if isExtended(name) && q.MilliValue()%1000 != 0 {
		return field.ErrorList{field.Invalid(path, q.String(), "must be an integer")}
	}
	return nil
}

func validateContainerResources(r *corev1.ResourceRequirements, claims map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := path.Child("limits"), path.Child("requests")
	cpuOrMemory, hugePages := false, false
	note := func(name corev1.ResourceName) {
		cpuOrMemory = cpuOrMemory || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		hugePages = hugePages || isHugePage(name)
	}
	for name, q := range r.Limits {
		note(name)
		errs = append(errs, validateResourceName(name, limits.Key(string(name)))...)
		errs = append(errs, validateQuantity(name, q, limits.Key(string(name)))...)
	}
	for name, q := range r.Requests {
		note(name)
		errs = append(errs, validateResourceName(name, requests.Key(string(name)))...)
		errs = append(errs, validateQuantity(name, q, requests.Key(string(name)))...)
		limit, limited := r.Limits[name]
		switch {
		case limited && q.Cmp(limit) != 0 && !overcommitted(name):
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && q.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		case !limited && !overcommitted(name):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		}
	}
	if hugePages && !cpuOrMemory {
		errs = append(errs, field.Forbidden(path, "HugePages require cpu or memory"))
	}
	return append(errs, validateResourceClaims(r.Claims, claims, path.Child("claims"))...)
}

func validateResourceClaims(used []corev1.ResourceClaim, claims map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range used {
		at := path.Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at, ""))
		case slices.ContainsFunc(used[:i], func(o corev1.ResourceClaim) bool {
			return o.Name == c.Name && (o.Request == c.Request || o.Request == "")
		}):
			errs = append(errs, field.Duplicate(at, c.Name))
		case !claims[c.Name]:
			errs = append(errs, field.NotFound(at, c.Name))
		}
	}
	return errs
}

func validateResizePolicy(policies []corev1.ContainerResizePolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.ResourceName]bool{}
	for i, p := range policies {
		if seen[p.ResourceName] {
			errs = append(errs, field.Duplicate(path.Index(i), p.ResourceName))
		}
		seen[p.ResourceName] = true
		errs = append(errs, requiredOneOf(path, p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, requiredOneOf(path, p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)...)
	}
	return errs
}
