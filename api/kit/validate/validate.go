// Package validate has the building blocks of the kinds' validation: checks of names and numbers, labels and
// selectors, addresses, paths of files, repeated elements. A check takes a field's path and its value, and returns
// errors that equal Kubernetes'. The package depends on no kind.
package validate

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

// Immutable is Kubernetes' message for a field that may not change.
const Immutable = validation.FieldImmutableErrorMsg

func Finalizer(name string, path *field.Path) field.ErrorList {
	if IsStandardFinalizer(name) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name,
		"name is neither a standard finalizer name nor is it fully qualified")}
}

func IsStandardFinalizer(name string) bool {
	switch name {
	case string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		return true
	}
	return strings.Contains(name, "/")
}

// Complaints turns the messages of a string check into errors of one field.
func Complaints[T any](path *field.Path, value T, complaints []string) field.ErrorList {
	if len(complaints) == 0 {
		return nil
	}
	errs := make(field.ErrorList, len(complaints))
	for i, c := range complaints {
		errs[i] = field.Invalid(path, value, c)
	}
	return errs
}

// Unchanged rejects a new value of an immutable field.
func Unchanged(value, old any, path *field.Path) field.ErrorList {
	if equal.Semantic(value, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, Immutable)}
}

// OneOf rejects values outside of a closed set. The message lists the set in the given order.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// RequiredOneOf is OneOf for a required field.
func RequiredOneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return OneOf(path, value, allowed...)
}

// RequiredOfThese is RequiredOneOf with a message that lists the choices.
func RequiredOfThese[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, fmt.Sprintf("valid values: %q", allowed))}
	}
	return OneOf(path, value, allowed...)
}

// RequiredSegment requires a name that is a valid segment of a URL's path, as the names of all kinds are.
func RequiredSegment(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return Segment(path, value)
}

func RequiredSubdomain(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return DnsSubdomain(path, value)
}

func Segment(path *field.Path, value string) field.ErrorList {
	return Complaints(path, value, SegmentName(value, false))
}

func Required(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return nil
}

func NonNegative[T int32 | int64 | int](path *field.Path, n T) field.ErrorList {
	if n >= 0 {
		return nil
	}
	return validation.ValidateNonnegativeField(int64(n), path.Plain())
}

func NonNegativePtr[T int32 | int64 | int](path *field.Path, n *T) field.ErrorList {
	if n == nil {
		return nil
	}
	return NonNegative(path, *n)
}

func Positive[T int32 | int64 | int](path *field.Path, n T) field.ErrorList {
	if n > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n, "must be greater than 0")}
}

func PortNumber(path *field.Path, port int32) field.ErrorList {
	return Complaints(path, port, utilvalidation.IsValidPortNum(int(port)))
}

// PortNumberOrName checks a port that may be the name of a container's port.
func PortNumberOrName(path *field.Path, port intstr.IntOrString) field.ErrorList {
	switch port.Type {
	case intstr.Int:
		return Complaints(path, port.IntValue(), utilvalidation.IsValidPortNum(port.IntValue()))
	case intstr.String:
		return Complaints(path, port.StrVal, naming.IsValidPortName(port.StrVal))
	default:
		return field.ErrorList{field.InternalError(path, fmt.Errorf("unknown type: %v", port.Type))}
	}
}

func DnsLabel(path *field.Path, value string) field.ErrorList {
	return Complaints(path, value, naming.IsDNS1123Label(value))
}

func DnsSubdomain(path *field.Path, value string) field.ErrorList {
	return Complaints(path, value, naming.IsDNS1123Subdomain(value))
}

// QualifiedName checks the key of a label or an annotation.
func QualifiedName(path *field.Path, value string) field.ErrorList {
	if len(naming.IsQualifiedName(value)) == 0 {
		return nil
	}
	return metav1validation.ValidateLabelName(value, path.Plain())
}

// CountOrPercent checks a value such as maxUnavailable: a count of at least 0, or a percentage.
func CountOrPercent(path *field.Path, value intstr.IntOrString) field.ErrorList {
	switch value.Type {
	case intstr.String:
		return Complaints(path, value, naming.IsValidPercent(value.StrVal))
	case intstr.Int:
		return NonNegative(path, value.IntVal)
	default:
		return field.ErrorList{field.Invalid(path, value, "must be an integer or percentage (e.g '5%%')")}
	}
}

// percentOf returns a percentage, or 0 and false for a count.
func percentOf(value intstr.IntOrString) (int, bool) {
	if value.Type != intstr.String || len(naming.IsValidPercent(value.StrVal)) > 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(value.StrVal, "%"))
	return n, err == nil
}

func NotOver100Percent(path *field.Path, value intstr.IntOrString) field.ErrorList {
	if n, ok := percentOf(value); ok && n > 100 {
		return field.ErrorList{field.Invalid(path, value, "must not be greater than 100%")}
	}
	return nil
}

// PercentOrCountIsZero reports whether a value that CountOrPercent accepts is zero.
func PercentOrCountIsZero(value intstr.IntOrString) bool {
	if n, ok := percentOf(value); ok {
		return n == 0
	}
	return value.IntValue() == 0
}
