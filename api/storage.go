package api

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const storageGroup = storagev1.GroupName

func storageClasses() *Resource {
	return &Resource{
		Group: storageGroup, Version: "v1", Kind: "StorageClass", Plural: "storageclasses",
		ShortNames: []string{"sc"},
		New:        func() Object { return &storagev1.StorageClass{} },
		NewList:    func() runtime.Object { return &storagev1.StorageClassList{} },

		Default: with(func(c *storagev1.StorageClass) {
			setDefaultPtr(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			setDefaultPtr(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		}),
		Validate:       checked(validateStorageClass),
		ValidateUpdate: checked2(validateStorageClassUpdate),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Provisioner", "string", storagev1.StorageClass{}.SwaggerDoc()["provisioner"]),
			column("ReclaimPolicy", "string", storagev1.StorageClass{}.SwaggerDoc()["reclaimPolicy"]),
			column("VolumeBindingMode", "string", storagev1.StorageClass{}.SwaggerDoc()["volumeBindingMode"]),
			column("AllowVolumeExpansion", "string", storagev1.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"]),
			ageColumn,
		},
		Cells: row(func(c *storagev1.StorageClass) []any {
			name := c.Name
			if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
				c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true" {
				name += " (default)"
			}
			return []any{
				name, c.Provisioner, string(ptr.Deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
				string(ptr.Deref(c.VolumeBindingMode, unset)), ptr.Deref(c.AllowVolumeExpansion, false), age(c.CreationTimestamp),
			}
		}),
	}
}

func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	errs := requiredName(strings.ToLower(c.Provisioner), field.NewPath("provisioner"))
	size := 0
	for key, value := range c.Parameters {
		size += len(key) + len(value)
		if key == "" {
			errs = append(errs, field.Invalid(field.NewPath("parameters"), key, "field can not be empty."))
		}
	}
	if len(c.Parameters) > 512 {
		errs = append(errs, field.TooLong(field.NewPath("parameters"), "Provisioner Parameters exceeded max allowed", 512))
	}
	if size > 256<<10 {
		errs = append(errs, field.TooLong(field.NewPath("parameters"), "", 256<<10))
	}
	if p := c.ReclaimPolicy; p != nil && *p != "" {
		errs = append(errs, oneOf(field.NewPath("reclaimPolicy"), *p, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)...)
	}
	at := field.NewPath("volumeBindingMode")
	if c.VolumeBindingMode == nil {
		return append(errs, field.Required(at, ""))
	}
	return append(errs, oneOf(at, *c.VolumeBindingMode, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)...)
}

func validateStorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name    string
		is, was any
	}{{"parameters", c.Parameters, old.Parameters}, {"provisioner", c.Provisioner, old.Provisioner}, {"reclaimPolicy", c.ReclaimPolicy, old.ReclaimPolicy}} {
		if !equality.Semantic.DeepEqual(f.is, f.was) {
			errs = append(errs, field.Forbidden(field.NewPath(f.name), "updates to "+f.name+" are forbidden."))
		}
	}
	return append(errs, unchanged(c.VolumeBindingMode, old.VolumeBindingMode, field.NewPath("volumeBindingMode"))...)
}

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
			seen := map[string]bool{}
			for i, d := range n.Spec.Drivers {
				at := field.NewPath("spec", "drivers").Index(i)
				errs = append(errs, required(at.Child("name"), d.Name)...)
				errs = append(errs, required(at.Child("nodeID"), d.NodeID)...)
				if seen[d.Name] {
					errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
				}
				seen[d.Name] = true
			}
			return errs
		}),

		Columns: []metav1.TableColumnDefinition{nameColumn, column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"), ageColumn},
		Cells: row(func(n *storagev1.CSINode) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), age(n.CreationTimestamp)}
		}),
	}
}

func volumeAttachments() *Resource {
	return &Resource{
		Group: storageGroup, Version: "v1", Kind: "VolumeAttachment", Plural: "volumeattachments",
		New:         func() Object { return &storagev1.VolumeAttachment{} },
		NewList:     func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		Conditional: true,

		Validate: checked(func(a *storagev1.VolumeAttachment) field.ErrorList {
			path := field.NewPath("spec")
			errs := required(path.Child("attacher"), a.Spec.Attacher)
			errs = append(errs, required(path.Child("nodeName"), a.Spec.NodeName)...)
			source := a.Spec.Source
			switch {
			case source.PersistentVolumeName == nil && source.InlineVolumeSpec == nil:
				errs = append(errs, field.Required(path.Child("source"), "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
			case source.PersistentVolumeName != nil && source.InlineVolumeSpec != nil:
				errs = append(errs, field.Forbidden(path.Child("source"), "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
			}
			return errs
		}),
		ValidateUpdate: checked2(func(a, old *storagev1.VolumeAttachment) field.ErrorList {
			if equality.Semantic.DeepEqual(a.Spec, old.Spec) {
				return nil
			}
			return field.ErrorList{field.Invalid(field.NewPath("spec"), a.Spec, "field is immutable")}
		}),
		Status: statusOf(
			func(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachmentStatus { return &a.Status },
			(*storagev1.VolumeAttachmentStatus).DeepCopy,
		),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Attacher", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"]),
			column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
			column("Node", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"]),
			column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
			ageColumn,
		},
		Cells: row(func(a *storagev1.VolumeAttachment) []any {
			return []any{a.Name, a.Spec.Attacher, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName, a.Status.Attached, age(a.CreationTimestamp)}
		}),
	}
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

func volumeAttributesClasses() *Resource {
	return &Resource{
		Group: storageGroup, Version: "v1", Kind: "VolumeAttributesClass", Plural: "volumeattributesclasses",
		ShortNames: []string{"vac"},
		New:        func() Object { return &storagev1.VolumeAttributesClass{} },
		NewList:    func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },

		Validate: checked(func(c *storagev1.VolumeAttributesClass) field.ErrorList {
			errs := requiredName(strings.ToLower(c.DriverName), field.NewPath("driverName"))
			if len(c.Parameters) == 0 {
				errs = append(errs, field.Required(field.NewPath("parameters"), "must contain at least one key/value pair"))
			}
			return errs
		}),
		ValidateUpdate: checked2(func(c, old *storagev1.VolumeAttributesClass) field.ErrorList {
			errs := unchanged(c.DriverName, old.DriverName, field.NewPath("driverName"))
			if !equality.Semantic.DeepEqual(c.Parameters, old.Parameters) {
				errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
			}
			return errs
		}),

		Columns: []metav1.TableColumnDefinition{
			nameColumn, column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]), ageColumn,
		},
		Cells: row(func(c *storagev1.VolumeAttributesClass) []any {
			return []any{c.Name, c.DriverName, age(c.CreationTimestamp)}
		}),
	}
}
