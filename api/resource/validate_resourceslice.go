package resource

import (
	"fmt"
	"math"
	"regexp"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

const (
	oneNodeChoice    = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	deviceNodeChoice = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when " +
		"`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	// maxValidValues limits the list of valid amounts of a capacity.
	maxValidValues = 10
)

func validateResourceSlice(s *resourcev1.ResourceSliceSpec, path *field.Path) field.ErrorList {
	errs := validate.CSIDriverName(s.Driver, path.Child("driver"))
	errs = append(errs, validatePoolName(path.Child("pool", "name"), s.Pool.Name)...)
	if s.Pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "resourceSliceCount"), s.Pool.ResourceSliceCount,
			"must be greater than zero"))
	}
	if s.Pool.Generation < 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "generation"), s.Pool.Generation,
			"must be greater than or equal to zero"))
	}
	errs = append(errs, validateSliceNodes(s, path)...)
	if s.SharedCounters != nil && s.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	perDevice := s.PerDeviceNodeSelection != nil && *s.PerDeviceNodeSelection
	errs = append(errs, atMostOnce(s.Devices, maxDevices(s.Devices), path.Child("devices"),
		func(d *resourcev1.Device) string {
			return d.Name
		},
		func(d *resourcev1.Device, path *field.Path) field.ErrorList {
			return validateDevice(d, perDevice, path)
		})...)
	return append(errs, atMostOnce(s.SharedCounters, resourcev1.ResourceSliceMaxCounterSets,
		path.Child("sharedCounters"),
		func(c *resourcev1.CounterSet) string { return c.Name },
		func(c *resourcev1.CounterSet, path *field.Path) field.ErrorList {
			errs := requiredLabel(path.Child("name"), c.Name)
			return append(errs, validateCounters(c.Counters, resourcev1.ResourceSliceMaxCountersPerCounterSet,
				path.Child("counters"))...)
		})...)
}

// maxDevices limits the devices of a slice. The limit is lower if a device has fields that make it large.
func maxDevices(devices []resourcev1.Device) int {
	for i := range devices {
		d := &devices[i]
		if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
		for _, a := range d.Attributes {
			if lists(&a) > 0 {
				return resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
		}
	}
	return resourcev1.ResourceSliceMaxDevices
}

func validateSliceNodes(s *resourcev1.ResourceSliceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var set []string
	if s.NodeName != nil {
		fldPath := path.Child("nodeName")
		if *s.NodeName == "" {
			errs = append(errs, field.Invalid(fldPath, "", "must be either unset or set to a non-empty string"))
		} else {
			set = append(set, "`nodeName`")
			errs = append(errs, validate.DnsSubdomain(fldPath, *s.NodeName)...)
		}
	}
	if s.NodeSelector != nil {
		fldPath := path.Child("nodeSelector")
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(s.NodeSelector, fldPath)...)
		if len(s.NodeSelector.NodeSelectorTerms) != 1 { // the selectors of several slices can be merged then
			errs = append(errs, field.Invalid(fldPath.Child("nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms,
				"must have exactly one node selector term"))
		}
	}
	for _, f := range []struct {
		name string
		set  *bool
	}{{"allNodes", s.AllNodes}, {"perDeviceNodeSelection", s.PerDeviceNodeSelection}} {
		errs = append(errs, onlyTrue(f.set, path.Child(f.name))...)
		if f.set != nil && *f.set {
			set = append(set, "`"+f.name+"`")
		}
	}
	return append(errs, validateNodeChoice(set, oneNodeChoice, oneNodeChoice+", but multiple fields are set", path)...)
}

func requiredLabel(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return validate.DnsLabel(path, name)
}

func validateCounters(counters map[string]resourcev1.Counter, limit int, path *field.Path) field.ErrorList {
	switch {
	case len(counters) == 0:
		return field.ErrorList{field.Required(path, "")}
	case len(counters) > limit:
		return field.ErrorList{field.TooMany(path, len(counters), limit)}
	}
	return eachOf(counters, utilvalidation.DNS1123LabelMaxLength, path,
		func(name string, _ resourcev1.Counter, path *field.Path) field.ErrorList {
			return validate.DnsLabel(path, name)
		})
}

func validateDevice(d *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	errs := validate.DnsLabel(path.Child("name"), d.Name)
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities "+
			"must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	errs = append(errs, validateAttributes(d.Attributes, path.Child("attributes"))...)
	shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	errs = append(errs, eachOf(d.Capacity, longestQualifiedName, path.Child("capacity"),
		func(name resourcev1.QualifiedName, c resourcev1.DeviceCapacity, path *field.Path) field.ErrorList {
			errs := validateDeviceKey(path, string(name))
			requestPolicyPath := path.Child("requestPolicy")
			switch {
			case c.RequestPolicy == nil:
			case !shared:
				errs = append(errs, field.Forbidden(requestPolicyPath, "allowMultipleAllocations must be true"))
			default:
				errs = append(errs, validateRequestPolicy(c.RequestPolicy, c.Value, requestPolicyPath)...)
			}
			return errs
		})...)
	errs = append(errs, atMost(d.Taints, resourcev1.DeviceTaintsMaxLength, path.Child("taints"),
		validateDeviceTaint)...)
	errs = append(errs, atMostOnce(d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
		path.Child("consumesCounters"),
		func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet },
		func(c *resourcev1.DeviceCounterConsumption, path *field.Path) field.ErrorList {
			errs := requiredLabel(path.Child("counterSet"), c.CounterSet)
			return append(errs,
				validateCounters(c.Counters, resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption,
					path.Child("counters"))...)
		})...)
	errs = append(errs, validateDeviceNodes(d, perDevice, path)...)
	return append(errs, validateBindingConditions(d.BindingConditions, d.BindingFailureConditions, path)...)
}

func validateDeviceNodes(d *resourcev1.Device, perDevice bool, path *field.Path) field.ErrorList {
	if !perDevice {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			return field.ErrorList{field.Invalid(path, nil, "`nodeName`, `nodeSelector` and `allNodes` can only "+
				"be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
		}
		return nil
	}
	var errs field.ErrorList
	var set []string
	if d.NodeName != nil {
		nodeNamePath := path.Child("nodeName")
		if *d.NodeName == "" {
			errs = append(errs, field.Invalid(nodeNamePath, "", "must not be empty"))
		} else {
			set = append(set, "`nodeName`")
			errs = append(errs, validate.DnsSubdomain(nodeNamePath, *d.NodeName)...)
		}
	}
	if d.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(d.NodeSelector, path.Child("nodeSelector"))...)
	}
	errs = append(errs, onlyTrue(d.AllNodes, path.Child("allNodes"))...)
	if d.AllNodes != nil && *d.AllNodes {
		set = append(set, "`allNodes`")
	}
	return append(errs, validateNodeChoice(set, deviceNodeChoice, deviceNodeChoice, path)...)
}

// lists returns the number of values in an attribute's lists.
func lists(a *resourcev1.DeviceAttribute) int {
	return len(a.IntValues) + len(a.BoolValues) + len(a.StringValues) + len(a.VersionValues)
}

func validateAttributes(attributes map[resourcev1.QualifiedName]resourcev1.DeviceAttribute,
	path *field.Path) field.ErrorList {
	total := 0
	errs := eachOf(attributes, longestQualifiedName, path,
		func(name resourcev1.QualifiedName, a resourcev1.DeviceAttribute, path *field.Path) field.ErrorList {
			total += max(1, lists(&a))
			return append(validateDeviceKey(path, string(name)), validateAttribute(&a, path)...)
		})
	if limit := resourcev1.ResourceSliceMaxAttributeValuesPerDevice; total > limit {
		errs = append(errs,
			field.Invalid(path, total, fmt.Sprintf("the total number of attribute values must not exceed %d", limit)))
	}
	return errs
}

// semanticVersion is semver.org's regular expression, without names for its groups.
var semanticVersion = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)` +
	`(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

func validateAttribute(a *resourcev1.DeviceAttribute, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	kinds := 0
	for _, set := range []bool{
		a.IntValue != nil, a.BoolValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.IntValues != nil, a.BoolValues != nil, a.StringValues != nil, a.VersionValues != nil,
	} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		errs = append(errs, field.Invalid(path, validate.Omitted, "exactly one value must be specified"))
	}
	if a.StringValue != nil {
		errs = append(errs, validateAttributeText(a.StringValue, path.Child("string"))...)
	}
	if a.VersionValue != nil {
		errs = append(errs, validateAttributeVersion(a.VersionValue, path.Child("version"))...)
	}
	errs = append(errs, atMost(a.StringValues, math.MaxInt, path.Child("strings"), validateAttributeText)...)
	return append(errs, atMost(a.VersionValues, math.MaxInt, path.Child("versions"), validateAttributeVersion)...)
}

func validateAttributeText(text *string, path *field.Path) field.ErrorList {
	if len(*text) > resourcev1.DeviceAttributeMaxValueLength {
		return field.ErrorList{field.TooLong(path, "" /*unused*/, resourcev1.DeviceAttributeMaxValueLength)}
	}
	return nil
}

func validateAttributeVersion(version *string, path *field.Path) field.ErrorList {
	errs := validateAttributeText(version, path)
	if !semanticVersion.MatchString(*version) {
		errs = append(errs, field.Invalid(path, *version, "must be a string compatible with semver.org spec 2.0.0"))
	}
	return errs
}

// validateRequestPolicy checks the rules for the consumption of a capacity (KEP-5075).
func validateRequestPolicy(p *resourcev1.CapacityRequestPolicy, capacity resource.Quantity,
	path *field.Path) field.ErrorList {
	switch {
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		return field.ErrorList{field.Forbidden(path,
			`exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(p.ValidValues) > 0 && p.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "required when validValues is defined")}
	case len(p.ValidValues) > 0:
		return validateValidValues(p.ValidValues, *p.Default, capacity, path.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "required when validRange is defined")}
	case p.ValidRange != nil:
		return validateValidRange(p.ValidRange, *p.Default, capacity, path.Child("validRange"))
	}
	return nil
}

func validateValidValues(values []resource.Quantity, standard, capacity resource.Quantity,
	path *field.Path) field.ErrorList {
	var errs field.ErrorList
	found := false
	for i := 1; i < len(values); i++ {
		if field.Enough(errs) {
			break
		}
		if values[i-1].Cmp(values[i]) > 0 {
			errs = append(errs, field.Invalid(path.Index(i), values[i].String(),
				"values must be sorted in ascending order"))
		}
	}
	errs = append(errs, atMostOnce(values, maxValidValues, path, (*resource.Quantity).Value,
		func(q *resource.Quantity, path *field.Path) field.ErrorList {
			found = found || q.Cmp(standard) == 0
			if q.Cmp(capacity) > 0 {
				return field.ErrorList{field.Invalid(path, q.String(), "option is larger than capacity value: "+
					capacity.String())}
			}
			return nil
		})...)
	if !found {
		errs = append(errs,
			field.Invalid(path, standard.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validateValidRange(r *resourcev1.CapacityRequestPolicyRange, standard, capacity resource.Quantity,
	path *field.Path) field.ErrorList {
	if r.Min == nil {
		return field.ErrorList{field.Required(path.Child("min"), "required when validRange is defined")}
	}
	var errs field.ErrorList
	lower := path.Child("min")
	if r.Min.Cmp(capacity) > 0 {
		errs = append(errs, field.Invalid(lower, r.Min.String(), "min is larger than capacity value: "+
			capacity.String()))
	}
	if standard.Cmp(*r.Min) < 0 {
		errs = append(errs, field.Invalid(lower, standard.String(), "default is less than min: "+r.Min.String()))
	}
	if upper := path.Child("max"); r.Max != nil {
		if r.Min.Cmp(*r.Max) > 0 {
			errs = append(errs, field.Invalid(upper, r.Min.String(), "min is larger than max: "+r.Max.String()))
		}
		if r.Max.Cmp(capacity) > 0 {
			errs = append(errs, field.Invalid(upper, r.Max.String(), "max is larger than capacity value: "+
				capacity.String()))
		}
		if standard.Cmp(*r.Max) > 0 {
			errs = append(errs, field.Invalid(upper, standard.String(), "default is more than max: "+r.Max.String()))
		}
	}
	if r.Step == nil {
		return errs
	}
	step := path.Child("step")
	next := r.Min.DeepCopy()
	if next.Add(*r.Step); next.Cmp(capacity) > 0 {
		errs = append(errs, field.Invalid(step, r.Step.String(), fmt.Sprintf("one step %s is larger than capacity "+
			"value: %s", next.String(), capacity.String())))
	}
	errs = append(errs, validateStep(standard, r, step)...)
	if r.Max != nil {
		errs = append(errs, validateStep(*r.Max, r, step)...)
	}
	return errs
}

// validateStep requires a value to be a whole number of steps above the minimum.
func validateStep(value resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, path *field.Path) field.ErrorList {
	if step := r.Step.Value(); step > 0 && (value.Value()-r.Min.Value())%step == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value.String(),
		fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(), r.Min.String()))}
}
