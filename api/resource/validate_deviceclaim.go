package resource

import (
	"fmt"
	"math"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

// requestNames has the names of a claim's requests, each with the names of its alternatives.
type requestNames map[string]sets.Set[string]

func requestNamesOf(requests []resourcev1.DeviceRequest) requestNames {
	names := requestNames{}
	for i := range requests {
		r := &requests[i]
		names[r.Name] = sets.Set[string]{}
		for _, sub := range r.FirstAvailable {
			names[r.Name].Insert(sub.Name)
		}
	}
	return names
}

const noSuchRequest = "must be the name of a request in the claim " +
	"or the name of a request and a subrequest separated by '/'"

// refer checks a reference to a request, or to one of its alternatives.
func (n requestNames) refer(name string, path *field.Path) field.ErrorList {
	request, sub, alternative := strings.Cut(name, "/")
	if strings.Contains(sub, "/") {
		return field.ErrorList{field.Invalid(path, name, noSuchRequest)}
	}
	errs := validate.DnsLabel(path, request)
	if alternative {
		errs = append(errs, validate.DnsLabel(path, sub)...)
	}
	subs, ok := n[request]
	if !ok || alternative && !subs.Has(sub) {
		errs = append(errs, field.Invalid(path, name, noSuchRequest))
	}
	return errs
}

// referAll checks a list of references without duplicates.
func (n requestNames) referAll(list []string, path *field.Path) field.ErrorList {
	return atMostOnce(list, resourcev1.DeviceRequestsMaxSize, path.Child("requests"), itself,
		func(name *string, path *field.Path) field.ErrorList {
			return n.refer(*name, path)
		})
}

// maxSelectors limits the selectors of one claim. Kubernetes allows 8,192 of them: 32 in each of the 8 alternatives of
// 32 requests. They would take some nine seconds to compile. Claims in use have a few.
const maxSelectors = 512

// countSelectors counts the selectors of requests that would be compiled. Lists that exceed their own limits are not.
func countSelectors(requests []resourcev1.DeviceRequest) (n int) {
	if len(requests) > resourcev1.DeviceRequestsMaxSize {
		return 0
	}
	count := func(selectors []resourcev1.DeviceSelector) {
		if len(selectors) <= resourcev1.DeviceSelectorsMaxSize {
			n += len(selectors)
		}
	}
	for i := range requests {
		if exactly := requests[i].Exactly; exactly != nil {
			count(exactly.Selectors)
		}
		alternatives := requests[i].FirstAvailable
		if len(alternatives) > resourcev1.FirstAvailableDeviceRequestMaxSize {
			continue
		}
		for j := range alternatives {
			count(alternatives[j].Selectors)
		}
	}
	return n
}

func validateDeviceClaim(c *resourcev1.DeviceClaim, path *field.Path) field.ErrorList {
	if n := countSelectors(c.Requests); n > maxSelectors {
		return field.ErrorList{field.Forbidden(path.Child("requests"),
			fmt.Sprintf("must not have more than %d selectors together, not %d", maxSelectors, n))}
	}
	names := requestNamesOf(c.Requests)
	errs := atMostOnce(c.Requests, resourcev1.DeviceRequestsMaxSize, path.Child("requests"),
		func(r *resourcev1.DeviceRequest) string { return r.Name }, validateDeviceRequest)
	errs = append(errs, atMost(c.Constraints, resourcev1.DeviceConstraintsMaxSize, path.Child("constraints"),
		func(c *resourcev1.DeviceConstraint, path *field.Path) field.ErrorList {
			return validateDeviceConstraint(c, names, path)
		})...)
	return append(errs, atMost(c.Config, resourcev1.DeviceConfigMaxSize, path.Child("config"),
		func(c *resourcev1.DeviceClaimConfiguration, path *field.Path) field.ErrorList {
			return append(names.referAll(c.Requests, path),
				validateDeviceConfiguration(&c.DeviceConfiguration, path)...)
		})...)
}

func validateDeviceRequest(r *resourcev1.DeviceRequest, path *field.Path) field.ErrorList {
	errs := validate.DnsLabel(path.Child("name"), r.Name)
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		errs = append(errs, field.Required(path, "exactly one of `exactly` or `firstAvailable` is required"))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		errs = append(errs, field.Invalid(path, nil, "exactly one of `exactly` or `firstAvailable` is required, "+
			"but multiple fields are set"))
	case r.Exactly != nil:
		fldPath, e := path.Child("exactly"), r.Exactly
		errs = append(errs, validate.RequiredSubdomain(fldPath.Child("deviceClassName"), e.DeviceClassName)...)
		errs = append(errs,
			validateDevices(&deviceSpec{e.Selectors, e.AllocationMode, e.Count, e.Tolerations, e.Capacity},
				fldPath)...)
	default:
		errs = append(errs, atMostOnce(r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize,
			path.Child("firstAvailable"),
			func(s *resourcev1.DeviceSubRequest) string { return s.Name }, validateSubRequest)...)
	}
	return errs
}

func validateSubRequest(s *resourcev1.DeviceSubRequest, path *field.Path) field.ErrorList {
	errs := validate.DnsLabel(path.Child("name"), s.Name)
	errs = append(errs, validate.RequiredSubdomain(path.Child("deviceClassName"), s.DeviceClassName)...)
	return append(errs,
		validateDevices(&deviceSpec{s.Selectors, s.AllocationMode, s.Count, s.Tolerations, s.Capacity},
			path)...)
}

// deviceSpec has the fields that a request and an alternative share.
type deviceSpec struct {
	selectors   []resourcev1.DeviceSelector
	mode        resourcev1.DeviceAllocationMode
	count       int64
	tolerations []resourcev1.DeviceToleration
	capacity    *resourcev1.CapacityRequirements
}

func validateDevices(w *deviceSpec, path *field.Path) field.ErrorList {
	errs := validateDeviceSelectors(w.selectors, path.Child("selectors"))
	count := path.Child("count")
	switch w.mode {
	case resourcev1.DeviceAllocationModeAll:
		if w.count != 0 {
			errs = append(errs,
				field.Invalid(count, w.count, fmt.Sprintf("must not be specified when allocationMode is '%s'", w.mode)))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if w.count <= 0 {
			errs = append(errs, field.Invalid(count, w.count, "must be greater than zero"))
		}
	default:
		errs = append(errs, validate.OneOf(path.Child("allocationMode"), w.mode, resourcev1.DeviceAllocationModeAll,
			resourcev1.DeviceAllocationModeExactCount)...)
	}
	errs = append(errs, validateDeviceTolerations(w.tolerations, path.Child("tolerations"))...)
	if w.capacity != nil {
		errs = append(errs, eachOf(w.capacity.Requests, longestQualifiedName, path.Child("capacity", "requests"),
			func(name resourcev1.QualifiedName, _ resource.Quantity, path *field.Path) field.ErrorList {
				return validateDeviceKey(path, string(name))
			})...)
	}
	return errs
}

func validateDeviceConstraint(c *resourcev1.DeviceConstraint, names requestNames, path *field.Path) field.ErrorList {
	errs := names.referAll(c.Requests, path)
	switch {
	case c.MatchAttribute != nil:
		return append(errs, validateFullDeviceKey(path.Child("matchAttribute"), *c.MatchAttribute)...)
	case c.DistinctAttribute != nil:
		return append(errs, validateFullDeviceKey(path.Child("distinctAttribute"), *c.DistinctAttribute)...)
	}
	return append(errs, field.Required(path, `exactly one of "matchAttribute" or "distinctAttribute" is required`))
}

func validateDeviceClaimStatus(c, old *resourcev1.ResourceClaim) field.ErrorList {
	path, s := field.NewPath("status"), &c.Status
	reserved := path.Child("reservedFor")
	errs := atMostOnce(s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, reserved,
		func(r *resourcev1.ResourceClaimConsumerReference) types.UID { return r.UID }, validateConsumer)
	allocated := allocatedDevices(s.Allocation)
	errs = append(errs, atMostOnce(s.Devices, math.MaxInt, path.Child("devices"), deviceOf,
		func(d *resourcev1.AllocatedDeviceStatus, path *field.Path) field.ErrorList {
			return validateDeviceStatus(d, allocated, path)
		})...)
	switch {
	case len(s.ReservedFor) > 0 && s.Allocation == nil:
		errs = append(errs, field.Forbidden(reserved, "may not be specified when `allocated` is not set"))
	case c.DeletionTimestamp != nil &&
		len(sets.New(s.ReservedFor...).Difference(sets.New(old.Status.ReservedFor...))) > 0:
		errs = append(errs, field.Forbidden(reserved, "new entries may not be added while `deallocationRequested` "+
			"or `deletionTimestamp` are set"))
	}
	allocationPath := path.Child("allocation")
	switch {
	case s.Allocation != nil && old.Status.Allocation != nil: // a stored allocation that breaks a newer rule may stay
		errs = append(errs, validate.Unchanged(s.Allocation, old.Status.Allocation, allocationPath)...)
	case s.Allocation != nil:
		errs = append(errs,
			validateAllocation(s.Allocation, requestNamesOf(c.Spec.Devices.Requests), allocationPath)...)
	}
	return errs
}

func validateConsumer(r *resourcev1.ResourceClaimConsumerReference, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("resource"), r.Resource)
	errs = append(errs, validate.Required(path.Child("name"), r.Name)...)
	return append(errs, validate.Required(path.Child("uid"), string(r.UID))...)
}

func validateAllocation(a *resourcev1.AllocationResult, names requestNames, path *field.Path) field.ErrorList {
	devicesPath := path.Child("devices")
	errs := atMost(a.Devices.Results, resourcev1.AllocationResultsMaxSize, devicesPath.Child("results"),
		func(r *resourcev1.DeviceRequestAllocationResult, path *field.Path) field.ErrorList {
			return validateAllocatedDevice(r, names, path)
		})
	const both = 2 * resourcev1.DeviceConfigMaxSize // of the class and of the claim
	errs = append(errs, atMost(a.Devices.Config, both, devicesPath.Child("config"),
		func(c *resourcev1.DeviceAllocationConfiguration, path *field.Path) field.ErrorList {
			errs := validate.RequiredOneOf(path.Child("source"), c.Source, resourcev1.AllocationConfigSourceClaim,
				resourcev1.AllocationConfigSourceClass)
			errs = append(errs, names.referAll(c.Requests, path)...)
			return append(errs, validateDeviceConfiguration(&c.DeviceConfiguration, path)...)
		})...)
	if a.NodeSelector != nil {
		errs = append(errs, podspec.ValidateNodeSelector(a.NodeSelector, path.Child("nodeSelector"))...)
	}
	return errs
}

func validateAllocatedDevice(r *resourcev1.DeviceRequestAllocationResult, names requestNames,
	path *field.Path) field.ErrorList {
	errs := names.refer(r.Request, path.Child("request"))
	errs = append(errs, validate.CSIDriverName(r.Driver, path.Child("driver"))...)
	errs = append(errs, validatePoolName(path.Child("pool"), r.Pool)...)
	errs = append(errs, validate.DnsLabel(path.Child("device"), r.Device)...)
	errs = append(errs, validateBindingConditions(r.BindingConditions, r.BindingFailureConditions, path)...)
	if r.ShareID != nil {
		errs = append(errs, validateShareID(path.Child("shareID"), string(*r.ShareID))...)
	}
	return errs
}

func validateDeviceStatus(d *resourcev1.AllocatedDeviceStatus, allocated sets.Set[sharedDevice],
	path *field.Path) field.ErrorList {
	errs := validate.CSIDriverName(d.Driver, path.Child("driver"))
	errs = append(errs, validatePoolName(path.Child("pool"), d.Pool)...)
	errs = append(errs, validate.DnsLabel(path.Child("device"), d.Device)...)
	if d.ShareID != nil {
		errs = append(errs, validateShareID(path.Child("shareID"), *d.ShareID)...)
	}
	if device := deviceOf(d); !allocated.Has(device) {
		errs = append(errs, field.Invalid(path, strings.Join([]string{device.driver, device.pool, device.device}, "/"),
			"must be an allocated device in the claim"))
	}
	conditions := path.Child("conditions")
	if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		errs = append(errs, field.TooMany(conditions, n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	errs = append(errs, metav1validation.ValidateConditions(d.Conditions, conditions.Plain())...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		errs = append(errs, validateOpaque(*d.Data, resourcev1.AllocatedDeviceStatusDataMaxLength,
			path.Child("data"))...)
	}
	if d.NetworkData != nil {
		errs = append(errs, validateNetworkData(d.NetworkData, path.Child("networkData"))...)
	}
	return errs
}

func validateNetworkData(n *resourcev1.NetworkDeviceData, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(n.InterfaceName) > resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
		errs = append(errs, field.TooLong(path.Child("interfaceName"), "", /*unused*/
			resourcev1.NetworkDeviceDataInterfaceNameMaxLength))
	}
	if len(n.HardwareAddress) > resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
		errs = append(errs, field.TooLong(path.Child("hardwareAddress"), "", /*unused*/
			resourcev1.NetworkDeviceDataHardwareAddressMaxLength))
	}
	return append(errs, atMostOnce(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, path.Child("ips"), itself,
		func(ip *string, path *field.Path) field.ErrorList {
			return utilvalidation.IsValidInterfaceAddress(path.Plain(), *ip)
		})...)
}
