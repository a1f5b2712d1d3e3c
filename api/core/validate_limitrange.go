package core

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	types := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		if field.Enough(errs) {
			break
		}
		item, idxPath := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(item.Type, idxPath.Child("type"))...)
		if types[item.Type] {
			errs = append(errs, field.Duplicate(idxPath.Child("type"), item.Type))
		}
		types[item.Type] = true
		errs = append(errs, validateLimitNames(item, idxPath)...)
		errs = append(errs, validateLimitBounds(item, idxPath)...)
	}
	return errs
}

func validateLimitType(t corev1.LimitType, path *field.Path) field.ErrorList {
	if errs := validate.Complaints(path, t, naming.IsQualifiedName(string(t))); len(errs) > 0 {
		return errs
	}
	switch t {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
		return nil
	}
	if strings.Contains(string(t), "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(path, t, "must be a standard limit type or fully qualified")}
}

// validateLimitNames checks the names of the limited resources. A pod has only limits, and no defaults.
func validateLimitNames(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	validName := resourcelist.ValidateName
	if item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
		validName = resourcelist.ValidateContainerName
	}
	var errs field.ErrorList
	names := func(field string, list corev1.ResourceList) {
		for _, name := range resourcelist.SortedNames(list) {
			errs = append(errs, validName(name, path.Child(field).Key(string(name)))...)
		}
	}
	names("max", item.Max)
	names("min", item.Min)
	if item.Type == corev1.LimitTypePod {
		const why = "may not be specified when `type` is 'Pod'"
		if len(item.Default) > 0 {
			errs = append(errs, field.Forbidden(path.Child("default"), why))
		}
		if len(item.DefaultRequest) > 0 {
			errs = append(errs, field.Forbidden(path.Child("defaultRequest"), why))
		}
	} else {
		names("default", item.Default)
		names("defaultRequest", item.DefaultRequest)
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, hasMin := item.Min[corev1.ResourceStorage]
		_, hasMax := item.Max[corev1.ResourceStorage]
		if !hasMin && !hasMax {
			errs = append(errs, field.Required(path.Child("limits"), "either minimum or maximum storage value is "+
				"required, but neither was provided"))
		}
	}
	names("maxLimitRequestRatio", item.MaxLimitRequestRatio)
	return errs
}

// limitBound is a pair of lists: low must not exceed high. It also has the path and the value of Kubernetes' error.
type limitBound struct {
	low, high   corev1.ResourceList
	lowIs, than string
	field       string
	blames      corev1.ResourceList
}

// validateLimitBounds requires minimum ≤ default request ≤ default ≤ maximum, and a ratio that is possible between the
// minimum and the maximum.
func validateLimitBounds(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	defaults, requests := item.Default, item.DefaultRequest
	if item.Type == corev1.LimitTypePod {
		defaults, requests = nil, nil
	}
	var errs field.ErrorList
	for _, b := range []limitBound{
		{item.Min, item.Max, "min", "max", "min", item.Min},
		{item.Min, requests, "min", "default request", "defaultRequest", requests},
		{requests, item.Max, "default request", "max", "defaultRequest", requests},
		{requests, defaults, "default request", "default limit", "defaultRequest", requests},
		{item.Min, defaults, "min", "default", "default", item.Min},
		{defaults, item.Max, "default", "max", "default", item.Max},
	} {
		for _, name := range resourcelist.SortedNames(b.low) {
			if field.Enough(errs) {
				break
			}
			low, high := b.low[name], b.high[name]
			if _, ok := b.high[name]; ok && low.Cmp(high) > 0 {
				errs = append(errs, field.Invalid(path.Child(b.field).Key(string(name)), b.blames[name],
					fmt.Sprintf("%s value %s is greater than %s value %s", b.lowIs, low.String(), b.than,
						high.String())))
			}
		}
	}
	for _, name := range resourcelist.SortedNames(item.MaxLimitRequestRatio) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateRatio(item, name, path.Child("maxLimitRequestRatio").Key(string(name)))...)
	}
	for _, name := range resourcelist.SortedNames(requests) {
		if field.Enough(errs) {
			break
		}
		request, limit := requests[name], defaults[name]
		if _, ok := defaults[name]; ok && !resourcelist.CanOvercommit(name) && request.Cmp(limit) != 0 {
			errs = append(errs, field.Invalid(path.Child("defaultRequest").Key(string(name)), request,
				fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", limit.String(),
					request.String(), name)))
		}
	}
	return errs
}

func validateRatio(item *corev1.LimitRangeItem, name corev1.ResourceName, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	ratio := item.MaxLimitRequestRatio[name]
	if ratio.Cmp(*resource.NewQuantity(1, resource.DecimalSI)) < 0 {
		errs = append(errs, field.Invalid(path, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
	}
	lower, bounded := item.Min[name]
	upper, boundedAbove := item.Max[name]
	if !bounded || !boundedAbove {
		return errs
	}
	room := upper.AsApproximateFloat64() / lower.AsApproximateFloat64()
	if ratio.AsApproximateFloat64() > room && !math.IsNaN(room) {
		errs = append(errs,
			field.Invalid(path, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), room)))
	}
	return errs
}
