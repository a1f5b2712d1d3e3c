package resource

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

// Checks that the kinds of resource.k8s.io share: names, bounded lists, selectors, opaque parameters, taints.

// atMost checks each entry of a list, unless the list is too long.
func atMost[T any](list []T, limit int, path *field.Path, check func(*T, *field.Path) field.ErrorList) field.ErrorList {
	if len(list) > limit {
		return field.ErrorList{field.TooMany(path, len(list), limit)}
	}
	var errs field.ErrorList
	for i := range list {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, check(&list[i], path.Index(i))...)
	}
	return errs
}

// atMostOnce is atMost for a list of entries with different keys.
func atMostOnce[T any, K comparable](list []T, limit int, path *field.Path, key func(*T) K,
	check func(*T, *field.Path) field.ErrorList) field.ErrorList {
	errs := atMost(list, limit, path, check)
	if len(list) <= limit {
		errs = append(errs, distinct(list, path, key)...)
	}
	return errs
}

// distinct rejects entries with the key of an earlier one.
func distinct[T any, K comparable](list []T, path *field.Path, key func(*T) K) field.ErrorList {
	var errs field.ErrorList
	seen := sets.Set[K]{}
	for i := range list {
		if field.Enough(errs) {
			break
		}
		if k := key(&list[i]); seen.Has(k) {
			errs = append(errs, field.Duplicate(path.Index(i), k))
		} else {
			seen.Insert(k)
		}
	}
	return errs
}

func itself(s *string) string { return *s }

// eachOf checks a map in the order of its keys. Messages have truncated keys.
func eachOf[K ~string, V any](m map[K]V, longest int, path *field.Path,
	check func(K, V, *field.Path) field.ErrorList) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, check(key, m[key], path.Key(shortened(string(key), longest)))...)
	}
	return errs
}

func shortened(s string, longest int) string {
	const gap = "..."
	if len(s) <= longest {
		return s
	}
	rest := longest - len(gap)
	return s[:(rest+1)/2] + gap + s[len(s)-rest/2:]
}

func validatePoolName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(path, "" /*unused*/, resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.DnsSubdomain(path, part)...)
	}
	return errs
}

var shareIDs = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func validateShareID(path *field.Path, id string) field.ErrorList {
	if shareIDs.MatchString(id) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, id, "uid must be in RFC 4122 normalized form, "+
		"`xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters")}
}

// longestQualifiedName is a domain, a slash and an identifier.
const longestQualifiedName = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength

// validateDeviceKey checks the name of an attribute or a capacity: a C identifier, with a domain before it if it is
// not the driver's own.
func validateDeviceKey(path *field.Path, name string) field.ErrorList {
	parts := strings.Split(name, "/")
	var errs field.ErrorList
	switch len(parts) {
	case 1:
		errs = validateIdentifier(path, parts[0])
	case 2:
		if parts[0] == "" {
			errs = append(errs, field.Invalid(path, "", "the domain must not be empty"))
		} else {
			errs = append(errs, validate.CSIDriverName(parts[0], path)...)
		}
		if parts[1] == "" {
			errs = append(errs, field.Invalid(path, "", "the name must not be empty"))
		} else {
			errs = append(errs, validateIdentifier(path, parts[1])...)
		}
	}
	return errs
}

func validateFullDeviceKey(path *field.Path, name resourcev1.FullyQualifiedName) field.ErrorList {
	errs := validateDeviceKey(path, string(name))
	if !strings.Contains(string(name), "/") {
		errs = append(errs,
			field.Invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash"))
	}
	return errs
}

func validateIdentifier(path *field.Path, id string) field.ErrorList {
	var errs field.ErrorList
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(path, "" /*unused*/, resourcev1.DeviceMaxIDLength))
	}
	return append(errs, validate.Complaints(path, id, utilvalidation.IsCIdentifier(id))...)
}

func validateDeviceSelectors(selectors []resourcev1.DeviceSelector, path *field.Path) field.ErrorList {
	return atMost(selectors, resourcev1.DeviceSelectorsMaxSize, path,
		func(s *resourcev1.DeviceSelector, path *field.Path) field.ErrorList {
			if s.CEL == nil {
				return field.ErrorList{field.Required(path.Child("cel"), "")}
			}
			return validateDeviceExpression(s.CEL.Expression, path.Child("cel", "expression"))
		})
}

// validateDeviceExpression checks a CEL expression that selects devices. It does not estimate the worst-case cost,
// since the allocator limits the actual cost.
func validateDeviceExpression(expression string, path *field.Path) field.ErrorList {
	switch {
	case len(expression) > resourcev1.CELSelectorExpressionMaxLength:
		return field.ErrorList{field.TooLong(path, "" /*unused*/, resourcev1.CELSelectorExpressionMaxLength)}
	case strings.TrimSpace(expression) == "":
		return field.ErrorList{field.Invalid(path, expression, "must not be empty")}
	}
	if err := cel.CheckDeviceSelector(expression); err != nil {
		return field.ErrorList{field.Invalid(path, expression, err.Error())}
	}
	return nil
}

func validateDeviceConfiguration(c *resourcev1.DeviceConfiguration, path *field.Path) field.ErrorList {
	if c.Opaque == nil {
		return field.ErrorList{field.Required(path.Child("opaque"), "")}
	}
	opaquePath := path.Child("opaque")
	errs := validate.CSIDriverName(c.Opaque.Driver, opaquePath.Child("driver"))
	return append(errs, validateOpaque(c.Opaque.Parameters, resourcev1.OpaqueParametersMaxLength,
		opaquePath.Child("parameters"))...)
}

// validateOpaque requires a JSON object. The API server does not interpret its content.
func validateOpaque(p runtime.RawExtension, longest int, path *field.Path) field.ErrorList {
	if len(p.Raw) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(p.Raw) > longest {
		return field.ErrorList{field.TooLong(path, "" /*unused*/, longest)}
	}
	var value any
	if err := json.Unmarshal(p.Raw, &value); err != nil {
		return field.ErrorList{field.Invalid(path, validate.Omitted, "error parsing data as JSON: "+err.Error())}
	}
	switch value.(type) {
	case nil:
		return field.ErrorList{field.Required(path, "")}
	case map[string]any:
		return nil
	}
	return field.ErrorList{field.Invalid(path, validate.Omitted, "must be a valid JSON object")}
}

func validateDeviceClass(c *resourcev1.DeviceClass) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateDeviceSelectors(c.Spec.Selectors, path.Child("selectors"))
	errs = append(errs, atMost(c.Spec.Config, resourcev1.DeviceConfigMaxSize, path.Child("config"),
		func(c *resourcev1.DeviceClassConfiguration, path *field.Path) field.ErrorList {
			return validateDeviceConfiguration(&c.DeviceConfiguration, path)
		})...)
	if name := c.Spec.ExtendedResourceName; name != nil && !isExtendedResource(*name) {
		errs = append(errs, field.Invalid(path.Child("extendedResourceName"), *name,
			"must be a valid extended resource name"))
	}
	return errs
}

// isExtendedResource reports whether a resource has a domain other than Kubernetes', and a name that a quota may use.
func isExtendedResource(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	if !ok || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") ||
		strings.HasPrefix(name, "requests.") {
		return false
	}
	return len(naming.IsQualifiedName("requests."+name)) == 0
}

var deviceTaintEffects = []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute,
	resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}

func validateDeviceTaint(t *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
	errs := validate.QualifiedName(path.Child("key"), t.Key)
	errs = append(errs, validate.Complaints(path.Child("value"), t.Value, naming.IsValidLabelValue(t.Value))...)
	return append(errs, validate.RequiredOneOf(path.Child("effect"), t.Effect, deviceTaintEffects...)...)
}

func validateDeviceTolerations(tolerations []resourcev1.DeviceToleration, path *field.Path) field.ErrorList {
	return atMost(tolerations, resourcev1.DeviceTolerationsMaxLength, path,
		func(t *resourcev1.DeviceToleration, path *field.Path) field.ErrorList {
			var errs field.ErrorList
			if t.Key != "" {
				errs = append(errs, validate.QualifiedName(path.Child("key"), t.Key)...)
			}
			value := path.Child("value")
			switch t.Operator {
			case resourcev1.DeviceTolerationOpExists:
				if t.Value != "" {
					errs = append(errs, field.Invalid(value, t.Value, "must be empty for operator `Exists`"))
				}
			case resourcev1.DeviceTolerationOpEqual:
				errs = append(errs, validate.Complaints(value, t.Value, naming.IsValidLabelValue(t.Value))...)
			default:
				errs = append(errs, validate.RequiredOneOf(path.Child("operator"), t.Operator,
					resourcev1.DeviceTolerationOpEqual,
					resourcev1.DeviceTolerationOpExists)...)
			}
			if t.Effect != "" {
				errs = append(errs, validate.OneOf(path.Child("effect"), t.Effect, deviceTaintEffects...)...)
			}
			return errs
		})
}

func validateTaintSelector(s *resourcev1.DeviceTaintSelector, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Driver != nil {
		errs = append(errs, validate.CSIDriverName(*s.Driver, path.Child("driver"))...)
	}
	if s.Pool != nil {
		errs = append(errs, validatePoolName(path.Child("pool"), *s.Pool)...)
	}
	if s.Device != nil {
		errs = append(errs, validate.DnsLabel(path.Child("device"), *s.Device)...)
	}
	return errs
}

// validateBindingConditions checks the device conditions that a pod's binding waits for, and the conditions that make
// it fail (KEP-5007).
func validateBindingConditions(conditions, failures []string, path *field.Path) field.ErrorList {
	named := func(name *string, path *field.Path) field.ErrorList {
		return validate.QualifiedName(path, *name)
	}
	good, bad := path.Child("bindingConditions"), path.Child("bindingFailureConditions")
	errs := atMostOnce(conditions, resourcev1.BindingConditionsMaxSize, good, itself, named)
	errs = append(errs, atMostOnce(failures, resourcev1.BindingFailureConditionsMaxSize, bad, itself, named)...)
	for i, name := range failures {
		if field.Enough(errs) {
			break
		}
		if slices.Contains(conditions, name) {
			errs = append(errs,
				field.Invalid(bad.Index(i), name, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	switch cmp.Compare(len(conditions), 0) - cmp.Compare(len(failures), 0) {
	case -1:
		errs = append(errs,
			field.Invalid(good, conditions, "bindingConditions are required to use bindingFailureConditions"))
	case 1:
		errs = append(errs,
			field.Invalid(bad, failures, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}

// validateNodeChoice requires exactly one way to select nodes. set has the names of the fields with a value.
func validateNodeChoice(set []string, complaint, tooMany string, path *field.Path) field.ErrorList {
	switch len(set) {
	case 0:
		return field.ErrorList{field.Required(path, complaint)}
	case 1:
		return nil
	}
	return field.ErrorList{field.Invalid(path, fmt.Sprintf("{%s}", strings.Join(set, ", ")), tooMany)}
}

// onlyTrue rejects false for an optional field.
func onlyTrue(b *bool, path *field.Path) field.ErrorList {
	if b == nil || *b {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *b, "must be either unset or set to true")}
}
