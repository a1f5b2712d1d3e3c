package resource

import (
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

// The kinds of resource.k8s.io describe devices that are allocated to pods (dynamic resource allocation, KEP-4381).
const resourceGroup = resourcev1.GroupName

func resourceClaims() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: resourceGroup, Version: "v1", Kind: "ResourceClaim", Plural: "resourceclaims", Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &resourcev1.ResourceClaim{} },
			NewList: func() runtime.Object { return &resourcev1.ResourceClaimList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default: api.Typed(func(c *resourcev1.ResourceClaim) {
				defaultDeviceRequests(c.Spec.Devices.Requests)
				if c.Status.Allocation != nil {
					for i := range c.Status.Allocation.Devices.Results {
						defaultTolerations(c.Status.Allocation.Devices.Results[i].Tolerations)
					}
				}
			}),
			// The spec is immutable, so a stored claim is not checked again.
			ValidateCreate: api.Check(func(c *resourcev1.ResourceClaim) field.ErrorList {
				return validateDeviceClaim(&c.Spec.Devices, field.NewPath("spec", "devices"))
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *resourcev1.ResourceClaim) field.ErrorList {
				return validate.Unchanged(c.Spec, old.Spec, field.NewPath("spec"))
			}),
			Permit: api.Permitted(func(caller api.Caller, c, old *resourcev1.ResourceClaim) field.ErrorList {
				if old != nil {
					return nil
				}
				return permitAdminRequests(caller, c.Spec.Devices.Requests, c.Namespace)
			}),
			Status: api.StatusOf(
				func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaimStatus { return &c.Status },
				(*resourcev1.ResourceClaimStatus).DeepCopy,
			).WrittenBy(api.Typed2(func(dst, src *resourcev1.ResourceClaim) {
				old := dst.Status
				dst.Status = *src.Status.DeepCopy()
				dropDeallocated(&dst.Status, &old)
			})).CheckedBy(api.CheckUpdate(validateDeviceClaimStatus)).PermittedBy(api.Permitted(permitClaimStatus)),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name,
				table.Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.)."),
				table.Age},
			Cells: api.Row(func(c *resourcev1.ResourceClaim) []any {
				return []any{c.Name, claimState(c), table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}

func claimState(c *resourcev1.ResourceClaim) string {
	var words []string
	if c.DeletionTimestamp != nil {
		words = append(words, "deleted")
	}
	switch {
	case c.Status.Allocation != nil && len(c.Status.ReservedFor) > 0:
		words = append(words, "allocated", "reserved")
	case c.Status.Allocation != nil:
		words = append(words, "allocated")
	case c.DeletionTimestamp == nil:
		words = append(words, "pending")
	}
	return strings.Join(words, ",")
}

func resourceClaimTemplates() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: resourceGroup, Version: "v1", Kind: "ResourceClaimTemplate", Plural: "resourceclaimtemplates",
			Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &resourcev1.ResourceClaimTemplate{} },
			NewList: func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default: api.Typed(func(t *resourcev1.ResourceClaimTemplate) {
				defaultDeviceRequests(t.Spec.Spec.Devices.Requests)
			}),
			ValidateCreate: api.Check(func(t *resourcev1.ResourceClaimTemplate) field.ErrorList {
				path := field.NewPath("spec")
				errs := podspec.ValidateTemplateMeta(&t.Spec.ObjectMeta, path.Child("metadata"))
				return append(errs, validateDeviceClaim(&t.Spec.Spec.Devices, path.Child("spec", "devices"))...)
			}),
			ValidateUpdate: api.CheckUpdate(func(t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
				return validate.Unchanged(t.Spec, old.Spec, field.NewPath("spec"))
			}),
			Permit: api.Permitted(func(caller api.Caller, t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
				if old != nil {
					return nil
				}
				return permitAdminRequests(caller, t.Spec.Spec.Devices.Requests, t.Namespace)
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.Age},
			Cells: api.Row(func(t *resourcev1.ResourceClaimTemplate) []any {
				return []any{t.Name, table.AgeOf(t.CreationTimestamp)}
			}),
		},
	}
}

func defaultDeviceRequests(requests []resourcev1.DeviceRequest) {
	for i := range requests {
		r := &requests[i]
		if e := r.Exactly; e != nil {
			defaultAllocation(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for j := range r.FirstAvailable {
			sub := &r.FirstAvailable[j]
			defaultAllocation(&sub.AllocationMode, &sub.Count)
			defaultTolerations(sub.Tolerations)
		}
	}
}

func defaultAllocation(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func defaultTolerations(tolerations []resourcev1.DeviceToleration) {
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}

// sharedDevice identifies a device, or one share of it if it is allocated several times.
type sharedDevice struct{ driver, pool, device, share string }

func allocatedDevices(a *resourcev1.AllocationResult) sets.Set[sharedDevice] {
	devices := sets.Set[sharedDevice]{}
	if a == nil {
		return devices
	}
	for _, r := range a.Devices.Results {
		d := sharedDevice{r.Driver, r.Pool, r.Device, ""}
		if r.ShareID != nil {
			d.share = string(*r.ShareID)
		}
		devices.Insert(d)
	}
	return devices
}

func deviceOf(s *resourcev1.AllocatedDeviceStatus) sharedDevice {
	d := sharedDevice{s.Driver, s.Pool, s.Device, ""}
	if s.ShareID != nil {
		d.share = *s.ShareID
	}
	return d
}

// dropDeallocated drops the status of devices that are no longer allocated to the claim.
func dropDeallocated(s, old *resourcev1.ResourceClaimStatus) {
	deallocated := allocatedDevices(old.Allocation).Difference(allocatedDevices(s.Allocation))
	if len(deallocated) == 0 {
		return
	}
	var remaining []resourcev1.AllocatedDeviceStatus
	for i := range s.Devices {
		if !deallocated.Has(deviceOf(&s.Devices[i])) {
			remaining = append(remaining, s.Devices[i])
		}
	}
	s.Devices = remaining
}

// permitAdminRequests rejects access to devices in use, except in namespaces with the label for it (KEP-5018).
func permitAdminRequests(caller api.Caller, requests []resourcev1.DeviceRequest, namespace string) field.ErrorList {
	for i, r := range requests {
		if r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
			return permitAdminAccess(caller, namespace,
				field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

func permitAdminAccess(caller api.Caller, namespace string, path *field.Path) field.ErrorList {
	labels, err := caller.NamespaceLabels(namespace)
	switch {
	case err != nil:
		return field.ErrorList{field.InternalError(path,
			fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	case labels[resourcev1.DRAAdminNamespaceLabelKey] != "true":
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` "+
			"label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))}
	}
	return nil
}

// adminResult returns the index of the first device that is allocated for admin access, or -1.
func adminResult(a *resourcev1.AllocationResult) int {
	if a == nil {
		return -1
	}
	for i, r := range a.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			return i
		}
	}
	return -1
}

// permitClaimStatus splits the permission to write a status: the scheduler writes allocations, and a driver the status
// of its own devices. A driver on a node may only write the status of that node's devices (KEP-5018, KEP-4817; the
// feature gate DRAResourceClaimGranularStatusAuthorization).
func permitClaimStatus(caller api.Caller, c, old *resourcev1.ResourceClaim) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	if i := adminResult(c.Status.Allocation); i >= 0 && adminResult(old.Status.Allocation) < 0 {
		errs = permitAdminAccess(caller, c.Namespace,
			path.Child("allocation", "devices", "results").Index(i).Child("adminAccess"))
	}
	if !equality.Semantic.DeepEqual(c.Status.Allocation, old.Status.Allocation) ||
		!equality.Semantic.DeepEqual(c.Status.ReservedFor, old.Status.ReservedFor) {
		if verb := caller.Verb(); !caller.May(verb, resourceGroup, "resourceclaims",
			resourcev1.SubresourceBinding, "", "") {
			errs = append(errs,
				field.Forbidden(path,
					fmt.Sprintf(`changing status.allocation or status.reservedFor requires `+
						`resource="resourceclaims/binding", verb=%q permission`, verb)))
		}
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + caller.Verb()}
	if node := nodeOfAllocation(c.Status.Allocation); node != "" && node == nodeOfAccount(caller.User()) {
		verbs = append([]string{resourcev1.VerbPrefixAssociatedNode + caller.Verb()}, verbs...)
	}
	// The permission to deallocate a device includes the removal of its status.
	was := old.Status.DeepCopy()
	was.Allocation = c.Status.Allocation
	dropDeallocated(was, &old.Status)
	for _, driver := range sets.List(changedDrivers(&c.Status, was)) {
		if field.Enough(errs) {
			break
		}
		may := false
		for _, verb := range verbs {
			may = may || caller.May(verb, resourceGroup, "resourceclaims", resourcev1.SubresourceDriver,
				c.Namespace, driver)
		}
		if !may {
			errs = append(errs,
				field.Forbidden(path.Child("devices"),
					fmt.Sprintf(`changing status.devices requires resource="resourceclaims/driver", `+
						`verb="%s" permission for %q`, verbs, driver)))
		}
	}
	return errs
}

// changedDrivers returns the drivers of the devices with a changed status.
func changedDrivers(s, old *resourcev1.ResourceClaimStatus) sets.Set[string] {
	was := map[sharedDevice]*resourcev1.AllocatedDeviceStatus{}
	for i := range old.Devices {
		was[deviceOf(&old.Devices[i])] = &old.Devices[i]
	}
	drivers := sets.Set[string]{}
	for i := range s.Devices {
		is := &s.Devices[i]
		if before, ok := was[deviceOf(is)]; !ok || !equality.Semantic.DeepEqual(*is, *before) {
			drivers.Insert(is.Driver)
		}
		delete(was, deviceOf(is))
	}
	for d := range was {
		drivers.Insert(d.driver)
	}
	return drivers
}

// nodeOfAllocation returns the only node that can use an allocation, or "" if there may be several.
func nodeOfAllocation(a *resourcev1.AllocationResult) string {
	if a == nil || a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := a.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return ""
	}
	f := term.MatchFields[0]
	if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn || len(f.Values) != 1 {
		return ""
	}
	return f.Values[0]
}

// nodeNameOfToken is the extra field of a token's user that names the node of the token's pod.
const nodeNameOfToken = "authentication.kubernetes.io/node-name"

// nodeOfAccount returns the node of the pod that the user's ServiceAccount token belongs to, or "".
func nodeOfAccount(user authenticationv1.UserInfo) string {
	names := user.Extra[nodeNameOfToken]
	if !strings.HasPrefix(user.Username, "system:serviceaccount:") || len(names) != 1 ||
		len(naming.IsDNS1123Subdomain(names[0])) > 0 {
		return ""
	}
	return names[0]
}
