package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// immutableField is the wording Kubernetes uses where a field may never change.
const immutableField = validation.FieldImmutableErrorMsg

// ValidateObjectMeta checks what every object's metadata must satisfy: the form of name and
// generateName (nil validateName means a DNS-1123 subdomain), the presence or absence of a
// namespace, labels, annotations (256 KiB together), owner references, finalizers and
// managed fields. path is "metadata" for an object at the top.
func ValidateObjectMeta(meta metav1.Object, namespaced bool, validateName func(name string, prefix bool) []string, path *field.Plain) field.ErrorList {
	if validateName == nil {
		validateName = naming.NameIsDNSSubdomain
	}
	if soundName(meta, namespaced, validateName) && soundDetails(meta) && soundFinalizers(meta.GetFinalizers()) {
		return standardFinalizers(meta, path)
	}
	errs := validation.ValidateObjectMetaAccessor(meta, namespaced, validateName, path)
	return append(errs, standardFinalizers(meta, path)...)
}

// ValidateObjectMetaUpdate checks what an update may not change: name, namespace, uid,
// creationTimestamp, deletionTimestamp and its grace period, no falling generation, and no
// new finalizers once the object is being deleted.
func ValidateObjectMetaUpdate(meta, old metav1.Object, path *field.Plain) field.ErrorList {
	if sameIdentity(meta, old) && soundDetails(meta) {
		return nil
	}
	return validation.ValidateObjectMetaAccessorUpdate(meta, old, path)
}

// standardFinalizers wants a finalizer without a domain to be one of Kubernetes' own.
func standardFinalizers(meta metav1.Object, path *field.Plain) field.ErrorList {
	var errs field.ErrorList
	for i, f := range meta.GetFinalizers() {
		if field.Enough(errs) {
			break
		}
		if !isStandardFinalizer(f) {
			errs = append(errs, standardFinalizer(f, field.In(path).Child("finalizers").Index(i))...)
		}
	}
	return errs
}

func standardFinalizer(name string, path *field.Path) field.ErrorList {
	if isStandardFinalizer(name) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")}
}

func isStandardFinalizer(name string) bool {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return true
	}
	return strings.Contains(name, "/")
}

// invalid turns the complaints of a string check into errors of one field.
func invalid[T any](path *field.Path, value T, complaints []string) field.ErrorList {
	if len(complaints) == 0 {
		return nil
	}
	errs := make(field.ErrorList, len(complaints))
	for i, c := range complaints {
		errs[i] = field.Invalid(path, value, c)
	}
	return errs
}

// unchanged refuses a new value for a field that is fixed.
func unchanged(value, old any, path *field.Path) field.ErrorList {
	if equal.Semantic(value, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, immutableField)}
}

// oneOf refuses values outside of a closed set, which it names in the order given.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// requiredOneOf is oneOf for a field that must be there.
func requiredOneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return oneOf(path, value, allowed...)
}

// requiredOfThese is requiredOneOf with a message that names the choices.
func requiredOfThese[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, fmt.Sprintf("valid values: %q", allowed))}
	}
	return oneOf(path, value, allowed...)
}

// requiredSegment wants what may stand in a URL: the name of an object of any kind.
func requiredSegment(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return segment(path, value)
}

func requiredSubdomain(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return dnsSubdomain(path, value)
}

func segment(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, segmentName(value, false))
}

func required(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}

func nonNegative[T int32 | int64 | int](path *field.Path, n T) field.ErrorList {
	if n >= 0 {
		return nil
	}
	return validation.ValidateNonnegativeField(int64(n), path.Plain())
}

func nonNegativePtr[T int32 | int64 | int](path *field.Path, n *T) field.ErrorList {
	if n == nil {
		return nil
	}
	return nonNegative(path, *n)
}

func positive[T int32 | int64 | int](path *field.Path, n T) field.ErrorList {
	if n > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n, "must be greater than 0")}
}

func portNumber(path *field.Path, port int32) field.ErrorList {
	return invalid(path, port, utilvalidation.IsValidPortNum(int(port)))
}

// portNumberOrName checks a port that may name a container's port.
func portNumberOrName(path *field.Path, port intstr.IntOrString) field.ErrorList {
	switch port.Type {
	case intstr.Int:
		return invalid(path, port.IntValue(), utilvalidation.IsValidPortNum(port.IntValue()))
	case intstr.String:
		return invalid(path, port.StrVal, naming.IsValidPortName(port.StrVal))
	default:
		return field.ErrorList{field.InternalError(path, fmt.Errorf("unknown type: %v", port.Type))}
	}
}

func dnsLabel(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, naming.IsDNS1123Label(value))
}

func dnsSubdomain(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, naming.IsDNS1123Subdomain(value))
}

// qualifiedName checks a label or annotation key.
func qualifiedName(path *field.Path, value string) field.ErrorList {
	if len(naming.IsQualifiedName(value)) == 0 {
		return nil
	}
	return metav1validation.ValidateLabelName(value, path.Plain())
}

// countOrPercent checks a value such as maxUnavailable: a count of at least 0 or a percentage.
func countOrPercent(path *field.Path, value intstr.IntOrString) field.ErrorList {
	switch value.Type {
	case intstr.String:
		return invalid(path, value, naming.IsValidPercent(value.StrVal))
	case intstr.Int:
		return nonNegative(path, value.IntVal)
	default:
		return field.ErrorList{field.Invalid(path, value, "must be an integer or percentage (e.g '5%%')")}
	}
}

// percentOf reads a percentage, or 0 and false for a count.
func percentOf(value intstr.IntOrString) (int, bool) {
	if value.Type != intstr.String || len(naming.IsValidPercent(value.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(value.StrVal, "%"))
	return n, err == nil
}

func notOver100Percent(path *field.Path, value intstr.IntOrString) field.ErrorList {
	if n, ok := percentOf(value); ok && n > 100 {
		return field.ErrorList{field.Invalid(path, value, "must not be greater than 100%")}
	}
	return nil
}

// percentOrCountIsZero says whether a value that passed countOrPercent is "none at all".
func percentOrCountIsZero(value intstr.IntOrString) bool {
	if n, ok := percentOf(value); ok {
		return n == 0
	}
	return value.IntValue() == 0
}
