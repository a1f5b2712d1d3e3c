package storage

import (
	"fmt"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func csiDrivers() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: storageGroup, Version: "v1", Kind: "CSIDriver", Plural: "csidrivers"},
		Storage: api.Storage{
			New:     func() api.Object { return &storagev1.CSIDriver{} },
			NewList: func() runtime.Object { return &storagev1.CSIDriverList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Conditional:   true,
			Default: api.Typed(func(d *storagev1.CSIDriver) {
				defaults.SetPtr(&d.Spec.AttachRequired, true)
				defaults.SetPtr(&d.Spec.PodInfoOnMount, false)
				defaults.SetPtr(&d.Spec.StorageCapacity, false)
				defaults.SetPtr(&d.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
				if len(d.Spec.VolumeLifecycleModes) == 0 {
					d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
				}
				defaults.SetPtr(&d.Spec.RequiresRepublish, false)
				defaults.SetPtr(&d.Spec.SELinuxMount, false)
			}),
			Validate: api.Check(func(d *storagev1.CSIDriver) field.ErrorList {
				path := field.NewPath("spec")
				var errs field.ErrorList
				for _, mode := range d.Spec.VolumeLifecycleModes {
					errs = append(errs, validate.OneOf(path.Child("volumeLifecycleModes"), mode,
						storagev1.VolumeLifecycleEphemeral, storagev1.VolumeLifecyclePersistent)...)
				}
				errs = append(errs, validateTokenRequests(d.Spec.TokenRequests, path.Child("tokenRequests"))...)
				if n := d.Spec.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < 10 {
					errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *n,
						"must be greater than or equal to 10 seconds"))
				}
				if b := d.Spec.ServiceAccountTokenInSecrets; b != nil && len(d.Spec.TokenRequests) == 0 {
					errs = append(errs, field.Invalid(path.Child("serviceAccountTokenInSecrets"), *b,
						"serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
				}
				if p := d.Spec.FSGroupPolicy; p != nil {
					errs = append(errs, validate.OneOf(path.Child("fsGroupPolicy"), *p, storagev1.FileFSGroupPolicy,
						storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)...)
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(func(d, old *storagev1.CSIDriver) field.ErrorList {
				path := field.NewPath("spec")
				errs := validate.Unchanged(d.Spec.AttachRequired, old.Spec.AttachRequired,
					path.Child("attachedRequired"))
				return append(errs, validate.Unchanged(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes,
					path.Child("volumeLifecycleModes"))...)
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("AttachRequired", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["attachRequired"]),
				table.Column("PodInfoOnMount", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["podInfoOnMount"]),
				table.Column("StorageCapacity", "boolean", storagev1.CSIDriverSpec{}.SwaggerDoc()["storageCapacity"]),
				table.Column("TokenRequests", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["tokenRequests"]),
				table.Column("RequiresRepublish", "boolean",
					storagev1.CSIDriverSpec{}.SwaggerDoc()["requiresRepublish"]),
				table.Column("Modes", "string", storagev1.CSIDriverSpec{}.SwaggerDoc()["volumeLifecycleModes"]),
				table.Age,
			},
			Cells: api.Row(func(d *storagev1.CSIDriver) []any {
				var tokens, modes []string
				for _, t := range d.Spec.TokenRequests {
					tokens = append(tokens, t.Audience)
				}
				for _, m := range d.Spec.VolumeLifecycleModes {
					modes = append(modes, string(m))
				}
				tokensCell := table.Unset
				if d.Spec.TokenRequests != nil {
					tokensCell = strings.Join(tokens, ",")
				}
				return []any{
					d.Name, ptr.Deref(d.Spec.AttachRequired, true), ptr.Deref(d.Spec.PodInfoOnMount, false),
					ptr.Deref(d.Spec.StorageCapacity, false),
					tokensCell, ptr.Deref(d.Spec.RequiresRepublish, false), table.JoinOrNone(modes),
					table.AgeOf(d.CreationTimestamp),
				}
			}),
		},
	}
}

func csiNodes() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: storageGroup, Version: "v1", Kind: "CSINode", Plural: "csinodes"},
		Storage: api.Storage{
			New:     func() api.Object { return &storagev1.CSINode{} },
			NewList: func() runtime.Object { return &storagev1.CSINodeList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Conditional:   true,
			Validate: api.Check(func(n *storagev1.CSINode) field.ErrorList {
				var errs field.ErrorList
				var names validate.Seen
				for i := range n.Spec.Drivers {
					if field.Enough(errs) {
						break
					}
					errs = append(errs, validateNodeDriver(&names, n.Spec.Drivers, i,
						field.NewPath("spec", "drivers").Index(i))...)
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(validateCSINodeUpdate),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name,
				table.Column("Drivers", "integer",
					"Drivers indicates the number of CSI drivers registered on the node"),
				table.Age},
			Cells: api.Row(func(n *storagev1.CSINode) []any {
				return []any{n.Name, int64(len(n.Spec.Drivers)), table.AgeOf(n.CreationTimestamp)}
			}),
		},
	}
}

func validateNodeDriver(names *validate.Seen, drivers []storagev1.CSINodeDriver, i int,
	path *field.Path) field.ErrorList {
	const longestID = 256
	d := &drivers[i]
	errs := validate.CSIDriverName(d.Name, path.Child("name"))
	errs = append(errs, validate.Required(path.Child("nodeID"), d.NodeID)...)
	if len(d.NodeID) > longestID {
		errs = append(errs, field.Invalid(path.Child("nodeID"), d.NodeID,
			fmt.Sprintf("must be %d characters or less", longestID)))
	}
	if d.Allocatable != nil {
		errs = append(errs, validate.NonNegativePtr(path.Child("allocatable", "count"), d.Allocatable.Count)...)
	}
	if validate.RepeatedBy(names, drivers[:i], d.Name, func(other *storagev1.CSINodeDriver) string {
		return other.Name
	}) {
		errs = append(errs, field.Duplicate(path.Child("name"), d.Name))
	}
	var before validate.Seen
	for k, key := range d.TopologyKeys {
		if field.Enough(errs) {
			break
		}
		if key == "" {
			errs = append(errs, field.Required(path, ""))
		}
		if validate.Repeated(&before, d.TopologyKeys[:k], key) {
			errs = append(errs, field.Duplicate(path, key))
		}
		errs = append(errs, validate.QualifiedName(path, key)...)
	}
	return errs
}

// validateCSINodeUpdate allows changes only of the number of volumes in a driver's entry.
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
			errs = append(errs, validate.Unchanged(is, was, field.NewPath("spec", "drivers"))...)
		}
	}
	return errs
}

func validateTokenRequests(requests []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var before validate.Seen
	for i, r := range requests {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if validate.RepeatedBy(&before, requests[:i], r.Audience, func(other *storagev1.TokenRequest) string {
			return other.Audience
		}) {
			errs = append(errs, field.Duplicate(idxPath.Child("audience"), r.Audience))
			continue
		}
		switch s := r.ExpirationSeconds; {
		case s == nil:
		case *s < 600:
			errs = append(errs, field.Invalid(idxPath.Child("expirationSeconds"), *s,
				"may not specify a duration less than 10 minutes"))
		case *s > 1<<32:
			errs = append(errs, field.Invalid(idxPath.Child("expirationSeconds"), *s,
				"may not specify a duration larger than 2^32 seconds"))
		}
	}
	return errs
}

func csiStorageCapacities() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: storageGroup, Version: "v1", Kind: "CSIStorageCapacity", Plural: "csistoragecapacities",
			Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &storagev1.CSIStorageCapacity{} },
			NewList: func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		},
		Strategy: api.Strategy{
			Conditional: true,
			Validate: api.Check(func(c *storagev1.CSIStorageCapacity) field.ErrorList {
				errs := validate.DnsSubdomain(field.NewPath("storageClassName"), c.StorageClassName)
				errs = append(errs, validate.Selector(c.NodeTopology, field.NewPath("nodeTopology"))...)
				if c.Capacity != nil && c.Capacity.Sign() < 0 {
					errs = append(errs, field.Invalid(field.NewPath("capacity"), c.Capacity.String(),
						"must be greater than or equal to 0"))
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
				errs := validate.Unchanged(c.NodeTopology, old.NodeTopology, field.NewPath("nodeTopology"))
				return append(errs, validate.Unchanged(c.StorageClassName, old.StorageClassName,
					field.NewPath("storageClassName"))...)
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("StorageClassName", "string",
					storagev1.CSIStorageCapacity{}.SwaggerDoc()["storageClassName"]),
				table.Column("Capacity", "string", storagev1.CSIStorageCapacity{}.SwaggerDoc()["capacity"]),
			},
			Cells: api.Row(func(c *storagev1.CSIStorageCapacity) []any {
				capacity := table.Unset
				if c.Capacity != nil {
					capacity = c.Capacity.String()
				}
				return []any{c.Name, c.StorageClassName, capacity}
			}),
		},
	}
}
