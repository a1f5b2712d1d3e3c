package core

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func persistentVolumes() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "PersistentVolume", Plural: "persistentvolumes",
			ShortNames: []string{"pv"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.PersistentVolume{} },
			NewList: func() runtime.Object { return &corev1.PersistentVolumeList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted:  true,
			Default:        api.Typed(defaultPersistentVolume),
			SetStatusTimes: setPhaseTransitionTime,
			Validate:       api.Check(validatePersistentVolume),
			ValidateUpdate: api.CheckUpdate(validatePersistentVolumeUpdate),
			Status: api.StatusOf(
				func(v *corev1.PersistentVolume) *corev1.PersistentVolumeStatus { return &v.Status },
				(*corev1.PersistentVolumeStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).StartingAs(api.Typed(func(v *corev1.PersistentVolume) {
				v.Status.Phase = corev1.VolumePending
				v.Status.LastPhaseTransitionTime = v.CreationTimestamp.DeepCopy() // KEP-3762
			})),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Capacity", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
				table.Column("Access Modes", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
				table.Column("Reclaim Policy", "string",
					corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
				table.Column("Status", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
				table.Column("Claim", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
				table.Column("StorageClass", "string", "StorageClass of the pv"),
				table.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
				table.Column("Reason", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
				table.Age,
				table.Wide("VolumeMode", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]),
			},
			Cells: api.Row(func(v *corev1.PersistentVolume) []any {
				claim := ""
				if ref := v.Spec.ClaimRef; ref != nil {
					claim = ref.Namespace + "/" + ref.Name
				}
				capacity := v.Spec.Capacity[corev1.ResourceStorage]
				return []any{
					v.Name, capacity.String(), accessModesCell(v.Spec.AccessModes),
					string(v.Spec.PersistentVolumeReclaimPolicy),
					deletedOr(v, string(v.Status.Phase)), claim, classOf(v.Annotations, &v.Spec.StorageClassName),
					ptr.Deref(v.Spec.VolumeAttributesClassName, table.Unset), v.Status.Reason,
					table.AgeOf(v.CreationTimestamp), modeCell(v.Spec.VolumeMode),
				}
			}),
		},
	}
}

// setPhaseTransitionTime records the time of a phase change, unless the client sets the time itself (KEP-3762).
func setPhaseTransitionTime(obj, old api.Object, now metav1.Time) {
	is, was := &obj.(*corev1.PersistentVolume).Status, old.(*corev1.PersistentVolume).Status
	if is.Phase != was.Phase && (is.LastPhaseTransitionTime == nil ||
		is.LastPhaseTransitionTime.Equal(was.LastPhaseTransitionTime)) {
		is.LastPhaseTransitionTime = &now
	}
}

func deletedOr(obj api.Object, phase string) string {
	if obj.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	return phase
}

func modeCell(mode *corev1.PersistentVolumeMode) string {
	if mode == nil {
		return table.Unset
	}
	return string(*mode)
}

// accessModesCell abbreviates each mode once, in a fixed order.
func accessModesCell(modes []corev1.PersistentVolumeAccessMode) string {
	var list []string
	for _, abbreviation := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"},
	} {
		for _, mode := range modes {
			if mode == abbreviation.mode {
				list = append(list, abbreviation.short)
				break
			}
		}
	}
	return strings.Join(list, ",")
}

// classOf returns the storage class from the field or from the older annotation.
func classOf(annotations map[string]string, class *string) string {
	if old, ok := annotations[corev1.BetaStorageClassAnnotation]; ok {
		return old
	}
	return ptr.Deref(class, "")
}

func defaultPersistentVolume(v *corev1.PersistentVolume) {
	defaults.Set(&v.Status.Phase, corev1.VolumePending)
	defaults.Set(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	defaults.SetPtr(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	resourcelist.Round(v.Spec.Capacity)
	if h := v.Spec.HostPath; h != nil {
		defaults.SetPtr(&h.Type, corev1.HostPathUnset)
	}
}

func persistentVolumeClaims() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "PersistentVolumeClaim", Plural: "persistentvolumeclaims", Namespaced: true,
			ShortNames: []string{"pvc"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.PersistentVolumeClaim{} },
			NewList: func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default: api.Typed(func(c *corev1.PersistentVolumeClaim) {
				defaults.Set(&c.Status.Phase, corev1.ClaimPending)
				podspec.DefaultClaimSpec(&c.Spec)
			}),
			Validate: api.Check(func(c *corev1.PersistentVolumeClaim) field.ErrorList {
				return podspec.ValidateClaimSpec(&c.Spec, field.NewPath("spec"))
			}),
			ValidateUpdate: api.CheckUpdate(validateClaimUpdate),
			Status: api.StatusOf(
				func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimStatus { return &c.Status },
				(*corev1.PersistentVolumeClaimStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).StartingAs(api.Typed(func(c *corev1.PersistentVolumeClaim) {
				c.Status.Phase = corev1.ClaimPending
			})).
				CheckedBy(api.CheckUpdate(validateClaimStatus)),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Status", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
				table.Column("Volume", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
				table.Column("Capacity", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
				table.Column("Access Modes", "string",
					corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
				table.Column("StorageClass", "string", "StorageClass of the pvc"),
				table.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
				table.Age,
				table.Wide("VolumeMode", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]),
			},
			Cells: api.Row(func(c *corev1.PersistentVolumeClaim) []any {
				capacity, modes := "", ""
				if c.Spec.VolumeName != "" {
					q := c.Status.Capacity[corev1.ResourceStorage]
					capacity, modes = q.String(), accessModesCell(c.Status.AccessModes)
				}
				return []any{
					c.Name, deletedOr(c, string(c.Status.Phase)), c.Spec.VolumeName, capacity, modes,
					classOf(c.Annotations, c.Spec.StorageClassName),
					ptr.Deref(c.Spec.VolumeAttributesClassName, table.Unset),
					table.AgeOf(c.CreationTimestamp), modeCell(c.Spec.VolumeMode),
				}
			}),
		},
	}
}
