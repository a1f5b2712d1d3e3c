package api

import (
	"fmt"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
)

func csiDrivers() *Resource {
	return &Resource{
		Group: storageGroup, Version: "v1", Kind: "CSIDriver", Plural: "csidrivers",
		New:         func() Object { return &storagev1.CSIDriver{} },
		NewList:     func() runtime.Object { return &storagev1.CSIDriverList{} },
		Conditional: true,

		Default: with(func(d *storagev1.CSIDriver) {
			setDefaultPtr(&d.Spec.AttachRequired, true)
			setDefaultPtr(&d.Spec.PodInfoOnMount, false)
			setDefaultPtr(&d.Spec.StorageCapacity, false)
			setDefaultPtr(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
			if len(d.Spec.VolumeLifecycleModes) == 0 {
				d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
			}
			setDefaultPtr(&d.Spec.RequiresRepublish, false)
			setDefaultPtr(&d.Spec.SELinuxMount, false)
		}),
		Validate: checked(func(d *storagev1.CSIDriver) field.ErrorList {
			path := field.NewPath("spec")
			var errs field.ErrorList
			for _, mode := range d.Spec.VolumeLifecycleModes {
				errs = append(errs, oneOf(path.Child("volumeLifecycleModes"), mode, storagev1.VolumeLifecycleEphemeral, storagev1.VolumeLifecyclePersistent)...)
			}
			errs = append(errs, validateTokenRequests(d.Spec.TokenRequests, path.Child("tokenRequests"))...)
			if n := d.Spec.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < 10 {
				errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *n, "must be greater than or equal to 10 seconds"))
			}
			if b := d.Spec.ServiceAccountTokenInSecrets; b != nil && len(d.Spec.TokenRequests) == 0 {
				errs = append(errs, field.Invalid(path.Child("serviceAccountTokenInSecrets"), *b, "serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
			}
			if p := d.Spec.FSGroupPolicy; p != nil {
				errs = append(errs, oneOf(path.Child("fsGroupPolicy"), *p, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)...)
			}
			return errs
		}),
		ValidateUpdate: checked2(func(d, old *storagev1.CSIDriver) field.ErrorList {
			path := field.NewPath("spec")
			errs := unchanged(d.Spec.AttachRequired, old.Spec.AttachRequired, path.Child("attachedRequired"))
			return append(errs, unchanged(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, path.Child("volumeLifecycleModes"))...)
		}),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("AttachRequired", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["attachRequired"]),
			column("PodInfoOnMount", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["podInfoOnMount"]),
			column("StorageCapacity", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["storageCapacity"]),
			column("TokenRequests", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["tokenRequests"]),
			column("RequiresRepublish", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["requiresRepublish"]),
			column("Modes", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["volumeLifecycleModes"]),
			ageColumn,
		},
		Cells: row(func(d *storagev1.CSIDriver) []any {
			var tokens, modes []string
			for _, t := range d.Spec.TokenRequests {
				tokens = append(tokens, t.Audience)
			}
			for _, m := range d.Spec.VolumeLifecycleModes {
				modes = append(modes, string(m))
			}
			tokensCell := unset
			if d.Spec.TokenRequests != nil {
				tokensCell = strings.Join(tokens, ",")
			}
			return []any{
				d.Name, ptr.Deref(d.Spec.AttachRequired, true), ptr.Deref(d.Spec.PodInfoOnMount, false), ptr.Deref(d.Spec.StorageCapacity, false),
				tokensCell, ptr.Deref(d.Spec.RequiresRepublish, false), joinOrNone(modes), age(d.CreationTimestamp),
			}
		}),
	}
}

func csiNodes() *Resource {
	return &Resource{
		Group: storageGroup, Version: "v1", Kind: "CSINode", Plural: "csinodes",
		New:         func() Object { return &storagev1.CSINode{} },
		NewList:     func() runtime.Object { return &storagev1.CSINodeList{} },
		Conditional: true,

		Validate: checked(func(n *storagev1.CSINode) field.ErrorList {
			var errs field.ErrorList
			var names seen
			for i := range n.Spec.Drivers {
				if field.Enough(errs) {
					break
				}
				errs = append(errs, validateNodeDriver(&names, n.Spec.Drivers, i, field.NewPath("spec", "drivers").Index(i))...)
			}
			return errs
		}),
		ValidateUpdate: checked2(validateCSINodeUpdate),

		Columns: []metav1.TableColumnDefinition{nameColumn, column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"), ageColumn},
		Cells: row(func(n *storagev1.CSINode) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), age(n.CreationTimestamp)}
		}),
	}
}

func validateNodeDriver(names *seen, drivers []storagev1.CSINodeDriver, i int, path *field.Path) field.ErrorList {
	const longestID = 256
	d := &drivers[i]
	errs := validateCSIDriverName(d.Name, path.Child("name"))
	errs = append(errs, required(path.Child("nodeID"), d.NodeID)...)
	if len(d.NodeID) > longestID {
		errs = append(errs, field.Invalid(path.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", longestID)))
	}
	if d.Allocatable != nil {
		errs = append(errs, nonNegativePtr(path.Child("allocatable", "count"), d.Allocatable.Count)...)
	}
	if repeatedBy(names, drivers[:i], d.Name, func(other *storagev1.CSINodeDriver) string { return other.Name }) {
		errs = append(errs, field.Duplicate(path.Child("name"), d.Name))
	}
	var before seen
	for k, key := range d.TopologyKeys {
		if field.Enough(errs) {
			break
		}
		if key == "" {
			errs = append(errs, field.Required(path, ""))
		}
		if repeated(&before, d.TopologyKeys[:k], key) {
			errs = append(errs, field.Duplicate(path, key))
		}
		errs = append(errs, qualifiedName(path, key)...)
	}
	return errs
}

// validateCSINodeUpdate fixes what a driver has said of itself, but for how many volumes it can take.
func validateCSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	var errs field.ErrorList
	before := make(map[string]storagev1.CSINodeDriver, len(old.Spec.Drivers))
	for _, was := range old.Spec.Drivers {
		before[was.Name] = was
	}
	for _, is := range n.Spec.Drivers {
		if field.Enough(errs) {
			break
		}
		if was, ok := before[is.Name]; ok {
			was.Allocatable, is.Allocatable = nil, nil
			errs = append(errs, unchanged(is, was, field.NewPath("spec", "drivers"))...)
		}
	}
	return errs
}

func validateTokenRequests(requests []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var before seen
	for i, r := range requests {
		if field.Enough(errs) {
			break
		}
		at := path.Index(i)
		if repeatedBy(&before, requests[:i], r.Audience, func(other *storagev1.TokenRequest) string { return other.Audience }) {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
			continue
		}
		switch s := r.ExpirationSeconds; {
		case s == nil:
		case *s < 600:
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration less than 10 minutes"))
		case *s > 1<<32:
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *s, "may not specify a duration larger than 2^32 seconds"))
		}
	}
	return errs
}

func csiStorageCapacities() *Resource {
	return &Resource{
		Group: storageGroup, Version: "v1", Kind: "CSIStorageCapacity", Plural: "csistoragecapacities", Namespaced: true,
		New:         func() Object { return &storagev1.CSIStorageCapacity{} },
		NewList:     func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		Conditional: true,

		Validate: checked(func(c *storagev1.CSIStorageCapacity) field.ErrorList {
			errs := dnsSubdomain(field.NewPath("storageClassName"), c.StorageClassName)
			errs = append(errs, selector(c.NodeTopology, field.NewPath("nodeTopology"))...)
			if c.Capacity != nil && c.Capacity.Sign() < 0 {
				errs = append(errs, field.Invalid(field.NewPath("capacity"), c.Capacity.String(), "must be greater than or equal to 0"))
			}
			return errs
		}),
		ValidateUpdate: checked2(func(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
			errs := unchanged(c.NodeTopology, old.NodeTopology, field.NewPath("nodeTopology"))
			return append(errs, unchanged(c.StorageClassName, old.StorageClassName, field.NewPath("storageClassName"))...)
		}),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("StorageClassName", "string", storagev1.CSIStorageCapacity{}.SwaggerDoc()["storageClassName"]),
			column("Capacity", "string", storagev1.CSIStorageCapacity{}.SwaggerDoc()["capacity"]),
		},
		Cells: row(func(c *storagev1.CSIStorageCapacity) []any {
			capacity := unset
			if c.Capacity != nil {
				capacity = c.Capacity.String()
			}
			return []any{c.Name, c.StorageClassName, capacity}
		}),
	}
}
