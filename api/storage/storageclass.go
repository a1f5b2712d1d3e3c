package storage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/core"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/kit/warning"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

const storageGroup = storagev1.GroupName

func storageClasses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: storageGroup, Version: "v1", Kind: "StorageClass", Plural: "storageclasses",
			ShortNames: []string{"sc"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &storagev1.StorageClass{} },
			NewList:        func() runtime.Object { return &storagev1.StorageClassList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default: api.Typed(func(c *storagev1.StorageClass) {
				defaults.SetPtr(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
				defaults.SetPtr(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
			}),
			Validate:       api.Check(validateStorageClass),
			ValidateUpdate: api.CheckUpdate(validateStorageClassUpdate),
			Warnings:       api.Warn(warnStorageClass),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Provisioner", "string", storagev1.StorageClass{}.SwaggerDoc()["provisioner"]),
				table.Column("ReclaimPolicy", "string", storagev1.StorageClass{}.SwaggerDoc()["reclaimPolicy"]),
				table.Column("VolumeBindingMode", "string", storagev1.StorageClass{}.SwaggerDoc()["volumeBindingMode"]),
				table.Column("AllowVolumeExpansion", "string",
					storagev1.StorageClass{}.SwaggerDoc()["allowVolumeExpansion"]),
				table.Age,
			},
			Cells: api.Row(func(c *storagev1.StorageClass) []any {
				name := c.Name
				if c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
					c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true" {
					name += " (default)"
				}
				return []any{
					name, c.Provisioner, string(ptr.Deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
					string(ptr.Deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
					ptr.Deref(c.AllowVolumeExpansion, false), table.AgeOf(c.CreationTimestamp),
				}
			}),
		},
	}
}

func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	errs := validate.RequiredQualifiedName(strings.ToLower(c.Provisioner), field.NewPath("provisioner"))
	errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
	if p := c.ReclaimPolicy; p != nil && *p != "" {
		errs = append(errs, validate.OneOf(field.NewPath("reclaimPolicy"), *p, corev1.PersistentVolumeReclaimDelete,
			corev1.PersistentVolumeReclaimRetain)...)
	}
	if fldPath := field.NewPath("volumeBindingMode"); c.VolumeBindingMode == nil {
		errs = append(errs, field.Required(fldPath, ""))
	} else {
		errs = append(errs, validate.OneOf(fldPath, *c.VolumeBindingMode, storagev1.VolumeBindingImmediate,
			storagev1.VolumeBindingWaitForFirstConsumer)...)
	}
	return append(errs, validateAllowedTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

// validateParameters limits a driver's parameters to 512, and to 256 KiB together.
func validateParameters(parameters map[string]string, path *field.Path) field.ErrorList {
	const maxEntries, largest = 512, 256 << 10
	if len(parameters) > maxEntries {
		return field.ErrorList{field.TooLong(path, "", maxEntries)}
	}
	var errs field.ErrorList
	size := 0
	for key, value := range parameters {
		if field.Enough(errs) {
			break
		}
		size += len(key) + len(value)
		if key == "" {
			errs = append(errs, field.Invalid(path, key, "field can not be empty."))
		}
	}
	if size > largest {
		errs = append(errs, field.TooLong(path, "", largest))
	}
	return errs
}

func validateAllowedTopologies(terms []corev1.TopologySelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := make(map[string]bool, len(terms))
	for i, term := range terms {
		if field.Enough(errs) {
			break
		}
		var keys validate.Seen
		for j, r := range term.MatchLabelExpressions {
			if field.Enough(errs) {
				break
			}
			idxPath := path.Index(i).Child("matchLabelExpressions").Index(j)
			if len(r.Values) == 0 {
				errs = append(errs, field.Required(idxPath.Child("values"), ""))
			}
			var before validate.Seen
			for k, value := range r.Values {
				if field.Enough(errs) {
					break
				}
				if validate.Repeated(&before, r.Values[:k], value) {
					errs = append(errs, field.Duplicate(idxPath.Child("values").Index(k), value))
				}
			}
			errs = append(errs, validate.QualifiedName(idxPath.Child("key"), r.Key)...)
			if validate.RepeatedBy(&keys, term.MatchLabelExpressions[:j], r.Key,
				func(o *corev1.TopologySelectorLabelRequirement) string {
					return o.Key
				}) {
				errs = append(errs, field.Duplicate(idxPath.Child("key"), r.Key))
			}
		}
		topology := topologyOf(term)
		if seen[topology] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("matchLabelExpressions"), ""))
		}
		seen[topology] = true
	}
	return errs
}

// topologyOf returns a text that is the same for terms that differ only in the order of keys and values.
func topologyOf(term corev1.TopologySelectorTerm) string {
	keys := make([]string, len(term.MatchLabelExpressions))
	for i, r := range term.MatchLabelExpressions {
		values := slices.Clone(r.Values)
		slices.Sort(values)
		keys[i] = fmt.Sprintf("%q%q", r.Key, slices.Compact(values))
	}
	slices.Sort(keys)
	return strings.Join(keys, "")
}

func warnStorageClass(c, _ *storagev1.StorageClass) []string {
	var w warning.List
	for i, term := range c.AllowedTopologies {
		for j, r := range term.MatchLabelExpressions {
			if text, ok := podspec.DeprecatedNodeLabels[r.Key]; ok {
				w.Add(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key"),
					"%s is %s", r.Key, text)
			}
		}
	}
	return w
}

func validateStorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name    string
		is, was any
	}{{"parameters", c.Parameters, old.Parameters}, {"provisioner", c.Provisioner, old.Provisioner},
		{"reclaimPolicy", c.ReclaimPolicy, old.ReclaimPolicy}} {
		if !equality.Semantic.DeepEqual(f.is, f.was) {
			errs = append(errs, field.Forbidden(field.NewPath(f.name), "updates to "+f.name+" are forbidden."))
		}
	}
	return append(errs, validate.Unchanged(c.VolumeBindingMode, old.VolumeBindingMode,
		field.NewPath("volumeBindingMode"))...)
}

func volumeAttachments() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: storageGroup, Version: "v1", Kind: "VolumeAttachment", Plural: "volumeattachments",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &storagev1.VolumeAttachment{} },
			NewList: func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Conditional:   true,
			Validate:      api.Check(validateAttachment),
			ValidateUpdate: api.CheckUpdate(func(a, old *storagev1.VolumeAttachment) field.ErrorList {
				if equality.Semantic.DeepEqual(a.Spec, old.Spec) {
					return nil
				}
				return field.ErrorList{field.Invalid(field.NewPath("spec"), a.Spec, "field is immutable")}
			}),
			Status: api.StatusOf(
				func(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachmentStatus { return &a.Status },
				(*storagev1.VolumeAttachmentStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(validateAttachmentStatus)),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				{Name: "Attacher", Type: "string", Format: "name",
					Description: storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"]},
				table.Column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
				table.Column("Node", "string", storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["nodeName"]),
				table.Column("Attached", "boolean", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
				table.Age,
			},
			Cells: api.Row(func(a *storagev1.VolumeAttachment) []any {
				return []any{a.Name, a.Spec.Attacher, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""),
					a.Spec.NodeName,
					a.Status.Attached, table.AgeOf(a.CreationTimestamp)}
			}),
		},
	}
}

func validateAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	path := field.NewPath("spec")
	errs := validate.CSIDriverName(a.Spec.Attacher, path.Child("attacher"))
	errs = append(errs, validate.DnsSubdomain(path.Child("nodeName"), a.Spec.NodeName)...)
	sourcePath, name := path.Child("source"), a.Spec.Source.PersistentVolumeName
	switch inline := a.Spec.Source.InlineVolumeSpec; {
	case name == nil && inline == nil:
		errs = append(errs,
			field.Required(sourcePath, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case name != nil && inline != nil:
		errs = append(errs,
			field.Forbidden(sourcePath, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case name != nil && *name == "":
		errs = append(errs, field.Required(sourcePath.Child("persistentVolumeName"),
			"must specify non empty persistentVolumeName"))
	case name != nil:
		errs = append(errs, validate.DnsSubdomain(sourcePath.Child("persistentVolumeName"), *name)...)
	default:
		errs = append(errs, validateInlineVolume(inline, sourcePath.Child("inlineVolumeSpec"))...)
	}
	return errs
}

// validateInlineVolume checks the volume in an attachment's spec, which was translated from a volume of another type.
// It must be a CSI volume, without the fields that only a PersistentVolume has.
func validateInlineVolume(spec *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"claimRef", spec.ClaimRef != nil}, {"capacity", len(spec.Capacity) > 0}, {"persistentVolumeReclaimPolicy",
			spec.PersistentVolumeReclaimPolicy != ""},
		{"nodeAffinity", spec.NodeAffinity != nil}, {"storageClassName", spec.StorageClassName != ""},
		{"volumeMode", spec.VolumeMode != nil},
	} {
		if f.set {
			errs = append(errs,
				field.Forbidden(path.Child(f.name), "may not be specified in the context of inline volumes"))
		}
	}
	if spec.CSI == nil {
		errs = append(errs, field.Required(path.Child("csi"), "has to be specified in the context of inline volumes"))
	}
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), ""))
	}
	return append(errs, core.ValidateAccessAndSource(spec, path)...)
}

// validateAttachmentStatus limits a driver's report: 256 KiB of metadata, 1 KiB of an error.
func validateAttachmentStatus(a, _ *storagev1.VolumeAttachment) field.ErrorList {
	const largest, longest = 256 << 10, 1 << 10
	var errs field.ErrorList
	path, size := field.NewPath("status"), 0
	for key, value := range a.Status.AttachmentMetadata {
		size += len(key) + len(value)
	}
	if size > largest {
		errs = append(errs, field.TooLong(path.Child("attachmentMetadata"), "", largest))
	}
	for _, e := range []struct {
		name string
		*storagev1.VolumeError
	}{{"attachError", a.Status.AttachError}, {"detachError", a.Status.DetachError}} {
		if e.VolumeError == nil {
			continue
		}
		if len(e.Message) > longest {
			errs = append(errs, field.TooLong(path.Child(e.name, "message"), "", largest))
		}
		if code := ptr.Deref(e.ErrorCode, 0); code < 0 {
			errs = append(errs, field.Invalid(path.Child(e.name, "errorCode"), code,
				utilvalidation.InclusiveRangeError(0, math.MaxInt32)))
		}
	}
	return errs
}

func volumeAttributesClasses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: storageGroup, Version: "v1", Kind: "VolumeAttributesClass", Plural: "volumeattributesclasses",
			ShortNames: []string{"vac"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &storagev1.VolumeAttributesClass{} },
			NewList: func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Validate: api.Check(func(c *storagev1.VolumeAttributesClass) field.ErrorList {
				errs := validate.RequiredQualifiedName(strings.ToLower(c.DriverName), field.NewPath("driverName"))
				errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
				if len(c.Parameters) == 0 {
					errs = append(errs,
						field.Required(field.NewPath("parameters"), "must contain at least one key/value pair"))
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *storagev1.VolumeAttributesClass) field.ErrorList {
				var errs field.ErrorList
				if c.DriverName != old.DriverName {
					errs = append(errs,
						field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
				}
				if !equality.Semantic.DeepEqual(c.Parameters, old.Parameters) {
					errs = append(errs,
						field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
				}
				return errs
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name, table.Column("DriverName", "string",
					storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
				table.Age,
			},
			Cells: api.Row(func(c *storagev1.VolumeAttributesClass) []any {
				return []any{c.Name, c.DriverName, table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}
