package api

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
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
		).withMetadata(AllMetadata).startingAs(with(func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumePending })),

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
		).withMetadata(AllMetadata).startingAs(with(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending })).
			checkedBy(checked2(validateClaimStatus)),

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
