package api

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func persistentVolumes() *Resource {
	return &Resource{
		Version: "v1", Kind: "PersistentVolume", Plural: "persistentvolumes",
		ShortNames: []string{"pv"},
		New:        func() Object { return &corev1.PersistentVolume{} },
		NewList:    func() runtime.Object { return &corev1.PersistentVolumeList{} },

		Default:        with(defaultPersistentVolume),
		Validate:       checked(validatePersistentVolume),
		ValidateUpdate: checked2(validatePersistentVolumeUpdate),
		Status: statusOf(
			func(v *corev1.PersistentVolume) *corev1.PersistentVolumeStatus { return &v.Status },
			(*corev1.PersistentVolumeStatus).DeepCopy,
		).startingAs(with(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumePending })),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Capacity", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
			column("Access Modes", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
			column("Reclaim Policy", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
			column("Status", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
			column("Claim", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
			column("StorageClass", "string", "StorageClass of the pv"),
			column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
			column("Reason", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
			ageColumn,
			wide("VolumeMode", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]),
		},
		Cells: row(func(v *corev1.PersistentVolume) []any {
			claim := ""
			if ref := v.Spec.ClaimRef; ref != nil {
				claim = ref.Namespace + "/" + ref.Name
			}
			capacity := v.Spec.Capacity[corev1.ResourceStorage]
			return []any{
				v.Name, capacity.String(), accessModesCell(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy),
				deletedOr(v, string(v.Status.Phase)), claim, classOf(v.Annotations, &v.Spec.StorageClassName),
				ptr.Deref(v.Spec.VolumeAttributesClassName, unset), v.Status.Reason, age(v.CreationTimestamp), modeCell(v.Spec.VolumeMode),
			}
		}),
	}
}

func deletedOr(obj Object, phase string) string {
	if obj.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	return phase
}

func modeCell(mode *corev1.PersistentVolumeMode) string {
	if mode == nil {
		return unset
	}
	return string(*mode)
}

// accessModesCell abbreviates each mode once, in a fixed order.
func accessModesCell(modes []corev1.PersistentVolumeAccessMode) string {
	var list []string
	for _, known := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		for _, mode := range modes {
			if mode == known.mode {
				list = append(list, known.short)
				break
			}
		}
	}
	return strings.Join(list, ",")
}

// classOf reads a storage class from where it is, or from the annotation where it was.
func classOf(annotations map[string]string, class *string) string {
	if old, ok := annotations[corev1.BetaStorageClassAnnotation]; ok {
		return old
	}
	return ptr.Deref(class, "")
}

func defaultPersistentVolume(v *corev1.PersistentVolume) {
	setDefault(&v.Status.Phase, corev1.VolumePending)
	setDefault(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	setDefaultPtr(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundResources(v.Spec.Capacity)
	if h := v.Spec.HostPath; h != nil {
		setDefaultPtr(&h.Type, corev1.HostPathUnset)
	}
}

func validatePersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	path, spec := field.NewPath("spec"), &v.Spec
	var errs field.ErrorList
	if len(spec.AccessModes) == 0 {
		errs = append(errs, field.Required(path.Child("accessModes"), ""))
	}
	for _, mode := range spec.AccessModes {
		errs = append(errs, oneOf(path.Child("accessModes"), mode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)...)
	}
	if len(spec.Capacity) == 0 {
		errs = append(errs, field.Required(path.Child("capacity"), ""))
	} else if q, ok := spec.Capacity[corev1.ResourceStorage]; !ok || len(spec.Capacity) > 1 {
		errs = append(errs, field.NotSupported(path.Child("capacity"), spec.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	} else if q.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("capacity").Key("storage"), q.String(), "must be greater than zero"))
	}
	if p := spec.PersistentVolumeReclaimPolicy; p != "" {
		errs = append(errs, oneOf(path.Child("persistentVolumeReclaimPolicy"), p,
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)...)
	}
	errs = append(errs, validateVolumePlace(spec, path)...)
	if class := spec.StorageClassName; class != "" {
		errs = append(errs, dnsSubdomain(path.Child("storageClassName"), class)...)
	}
	if mode := spec.VolumeMode; mode != nil {
		errs = append(errs, oneOf(path.Child("volumeMode"), *mode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)...)
	}
	return errs
}

// validateVolumePlace checks where a volume is: exactly one source, and for a local one
// the nodes that have it.
func validateVolumePlace(spec *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	sources, fields := 0, reflect.ValueOf(spec.PersistentVolumeSource)
	for i := range fields.NumField() {
		if !fields.Field(i).IsNil() {
			sources++
		}
	}
	var errs field.ErrorList
	switch sources {
	case 0:
		errs = append(errs, field.Required(path, "must specify a volume type"))
	case 1:
	default:
		errs = append(errs, field.Forbidden(path, "may not specify more than 1 volume type"))
	}
	if h := spec.HostPath; h != nil {
		errs = append(errs, validateHostPath(h, path.Child("hostPath"))...)
		if spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle && h.Path == "/" {
			errs = append(errs, field.Forbidden(path.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
		}
	}
	if n := spec.NFS; n != nil {
		errs = append(errs, validateNFS(n, path.Child("nfs"))...)
	}
	if c := spec.CSI; c != nil {
		errs = append(errs, required(path.Child("csi", "driver"), c.Driver)...)
		errs = append(errs, required(path.Child("csi", "volumeHandle"), c.VolumeHandle)...)
	}
	affinity := path.Child("nodeAffinity")
	if spec.Local != nil {
		errs = append(errs, required(path.Child("local", "path"), spec.Local.Path)...)
		if spec.NodeAffinity == nil {
			errs = append(errs, field.Required(affinity, "Local volume requires node affinity"))
		}
	}
	if a := spec.NodeAffinity; a != nil {
		if a.Required == nil {
			errs = append(errs, field.Required(affinity.Child("required"), "must specify required node constraints"))
		} else {
			errs = append(errs, validateNodeSelector(a.Required, affinity.Child("required"))...)
		}
	}
	return errs
}

func validatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(path.Child("persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
	}
	return append(errs, unchanged(v.Spec.VolumeMode, old.Spec.VolumeMode, path.Child("volumeMode"))...)
}

func persistentVolumeClaims() *Resource {
	return &Resource{
		Version: "v1", Kind: "PersistentVolumeClaim", Plural: "persistentvolumeclaims", Namespaced: true,
		ShortNames: []string{"pvc"},
		New:        func() Object { return &corev1.PersistentVolumeClaim{} },
		NewList:    func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },

		Default: with(func(c *corev1.PersistentVolumeClaim) {
			setDefault(&c.Status.Phase, corev1.ClaimPending)
			defaultClaimSpec(&c.Spec)
		}),
		Validate: checked(func(c *corev1.PersistentVolumeClaim) field.ErrorList {
			return validateClaimSpec(&c.Spec, field.NewPath("spec"))
		}),
		ValidateUpdate: checked2(validateClaimUpdate),
		Status: statusOf(
			func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimStatus { return &c.Status },
			(*corev1.PersistentVolumeClaimStatus).DeepCopy,
		).startingAs(with(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending })),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
			column("Volume", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
			column("Capacity", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
			column("Access Modes", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
			column("StorageClass", "string", "StorageClass of the pvc"),
			column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
			ageColumn,
			wide("VolumeMode", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]),
		},
		Cells: row(func(c *corev1.PersistentVolumeClaim) []any {
			capacity, modes := "", ""
			if c.Spec.VolumeName != "" {
				q := c.Status.Capacity[corev1.ResourceStorage]
				capacity, modes = q.String(), accessModesCell(c.Status.AccessModes)
			}
			return []any{
				c.Name, deletedOr(c, string(c.Status.Phase)), c.Spec.VolumeName, capacity, modes,
				classOf(c.Annotations, c.Spec.StorageClassName), ptr.Deref(c.Spec.VolumeAttributesClassName, unset),
				age(c.CreationTimestamp), modeCell(c.Spec.VolumeMode),
			}
		}),
	}
}

// validateClaimUpdate lets a bound claim grow, a pending one be bound and be given a
// class, and nothing else.
func validateClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	is, was := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	capacity, known := old.Status.Capacity[corev1.ResourceStorage]
	if is.Cmp(was) < 0 && (!known || is.Cmp(capacity) <= 0) {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	rest := c.Spec.DeepCopy()
	if old.Status.Phase == corev1.ClaimBound {
		rest.Resources.Requests = old.Spec.Resources.Requests
	}
	if old.Spec.VolumeName == "" {
		rest.VolumeName = ""
	}
	if old.Spec.StorageClassName == nil {
		rest.StorageClassName = nil
	}
	rest.VolumeAttributesClassName = old.Spec.VolumeAttributesClassName
	if !equality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(path, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	return errs
}
