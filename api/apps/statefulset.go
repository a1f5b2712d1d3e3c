package apps

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func statefulSets() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "apps", Version: "v1", Kind: "StatefulSet", Plural: "statefulsets", Namespaced: true,
			ShortNames: []string{"sts"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &appsv1.StatefulSet{} },
			NewList: func() runtime.Object { return &appsv1.StatefulSetList{} },
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultStatefulSet),
			ValidateName:   naming.NameIsDNSLabel,
			Validate:       api.Check(validateStatefulSet),
			ValidateCreate: api.Check(validateNewStatefulSet),
			ValidateUpdate: api.CheckUpdate(validateStatefulSetUpdate),
			Status: api.StatusOf(
				func(s *appsv1.StatefulSet) *appsv1.StatefulSetStatus { return &s.Status },
				(*appsv1.StatefulSetStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateStatefulSetStatus)),
			Scale: &api.Scale{
				Get: func(obj api.Object) (int32, int32, string) {
					s := obj.(*appsv1.StatefulSet)
					return ptr.Deref(s.Spec.Replicas, 0), s.Status.Replicas, selectorString(s.Spec.Selector)
				},
				Set: func(obj api.Object, n int32) { obj.(*appsv1.StatefulSet).Spec.Replicas = &n },
			},
			Generation: true,
			Warnings:   api.Warn(warnStatefulSet),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Ready", "string", "Number of the pod with ready state"),
				table.Age, table.Containers, table.Images,
			},
			Cells: api.Row(func(s *appsv1.StatefulSet) []any {
				names, images := table.ContainersOf(s.Spec.Template.Spec.Containers)
				return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, ptr.Deref(s.Spec.Replicas, 0)),
					table.AgeOf(s.CreationTimestamp), names, images}
			}),
		},
	}
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	spec := &s.Spec
	defaults.Set(&spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	defaults.Set(&spec.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
	if spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		defaults.SetPtr(&spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		defaults.SetPtr(&spec.UpdateStrategy.RollingUpdate.Partition, 0)
		defaults.SetPtr(&spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	defaults.SetPtr(&spec.PersistentVolumeClaimRetentionPolicy,
		appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	defaults.Set(&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	defaults.Set(&spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	defaults.SetPtr(&spec.Replicas, 1)
	defaults.SetPtr(&spec.RevisionHistoryLimit, 10)
	for i := range spec.VolumeClaimTemplates {
		claim := &spec.VolumeClaimTemplates[i]
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		defaults.Set(&claim.Status.Phase, "Pending")
		podspec.DefaultClaimSpec(&claim.Spec)
	}
	podspec.Default(&spec.Template.Spec)
}

func validateStatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	path, spec := field.NewPath("spec"), &s.Spec
	var errs field.ErrorList
	switch fldPath := path.Child("podManagementPolicy"); spec.PodManagementPolicy {
	case "":
		errs = append(errs, field.Required(fldPath, ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs,
			field.Invalid(fldPath, spec.PodManagementPolicy,
				fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	if p := spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		fldPath := path.Child("persistentVolumeClaimRetentionPolicy")
		for name, policy := range map[string]appsv1.PersistentVolumeClaimRetentionPolicyType{
			"whenDeleted": p.WhenDeleted, "whenScaled": p.WhenScaled,
		} {
			errs = append(errs, validate.OneOf(fldPath.Child(name), policy,
				appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
				appsv1.RetainPersistentVolumeClaimRetentionPolicyType)...)
		}
	}
	errs = append(errs, validate.NonNegativePtr(path.Child("replicas"), spec.Replicas)...)
	errs = append(errs, validate.NonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	if spec.Ordinals != nil {
		errs = append(errs, validate.NonNegative(path.Child("ordinals", "start"), spec.Ordinals.Start)...)
	}
	errs = append(errs, validateOwnSelector("statefulset", spec.Selector, path.Child("selector"))...)
	if parsed, err := metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), spec.Selector, ""))
	} else {
		errs = append(errs, podspec.ValidateSelectsTemplate(parsed, spec.Template.Labels, path)...)
		errs = append(errs, podspec.ValidateTemplate(podTemplateOf(spec), path.Child("template"))...)
	}
	return append(errs, podspec.ValidateRunsForEver("StatefulSet", &spec.Template.Spec,
		path.Child("template", "spec"))...)
}

// validateNewStatefulSet checks fields that an update cannot change. Older objects may keep their values.
func validateNewStatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	var errs field.ErrorList
	path, spec := field.NewPath("spec"), &s.Spec
	if spec.ServiceName != "" {
		errs = append(errs, validate.DnsLabel(path.Child("serviceName"), spec.ServiceName)...)
	}
	for i := range spec.VolumeClaimTemplates {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, podspec.ValidateClaimSpec(&spec.VolumeClaimTemplates[i].Spec,
			path.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	return errs
}

func warnStatefulSet(s, old *appsv1.StatefulSet) []string {
	if old != nil && old.Generation == s.Generation {
		return nil
	}
	warnings := podspec.WarnTemplate(&s.Spec.Template, field.NewPath("spec", "template"))
	for i := range s.Spec.VolumeClaimTemplates {
		warnings = append(warnings, podspec.WarnClaimSpec(&s.Spec.VolumeClaimTemplates[i].Spec,
			field.NewPath("spec", "volumeClaimTemplates").Index(i))...)
	}
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		warnings = append(warnings,
			"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}

func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(path.Child("rollingUpdate"), s.RollingUpdate,
				fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			return nil
		}
		fldPath := path.Child("rollingUpdate")
		errs := validate.NonNegativePtr(fldPath.Child("partition"), s.RollingUpdate.Partition)
		if u := s.RollingUpdate.MaxUnavailable; u != nil {
			fldPath := fldPath.Child("maxUnavailable")
			errs = append(errs, validate.CountOrPercent(fldPath, *u)...)
			if validate.PercentOrCountIsZero(*u) {
				errs = append(errs, field.Invalid(fldPath, *u, "cannot be 0"))
			}
			errs = append(errs, validate.NotOver100Percent(fldPath, *u)...)
		}
		return errs
	default:
		return field.ErrorList{field.Invalid(path, s,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType,
				appsv1.OnDeleteStatefulSetStrategyType))}
	}
}

// validateStatefulSetUpdate rejects changes of the fields that determine the identity of the pods and their volumes.
func validateStatefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	rest := s.Spec.DeepCopy()
	rest.Replicas, rest.Template, rest.UpdateStrategy = old.Spec.Replicas, old.Spec.Template, old.Spec.UpdateStrategy
	rest.MinReadySeconds, rest.Ordinals = old.Spec.MinReadySeconds, old.Spec.Ordinals
	rest.PersistentVolumeClaimRetentionPolicy = old.Spec.PersistentVolumeClaimRetentionPolicy
	rest.RevisionHistoryLimit = old.Spec.RevisionHistoryLimit
	if equality.Semantic.DeepEqual(rest, &old.Spec) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec"), "updates to statefulset spec for fields other "+
		"than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', "+
		"'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden")}
}

func validateStatefulSetStatus(s, old *appsv1.StatefulSet) field.ErrorList {
	path, st := field.NewPath("status"), &s.Status
	parts := []validate.Count{{"readyReplicas", st.ReadyReplicas}, {"currentReplicas", st.CurrentReplicas},
		{"updatedReplicas", st.UpdatedReplicas}, {"availableReplicas", st.AvailableReplicas}}
	errs := validate.Counts(path, append(parts, validate.Count{"replicas", st.Replicas}))
	errs = append(errs, validate.NonNegative(path.Child("observedGeneration"), st.ObservedGeneration)...)
	for _, n := range parts {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.NotAbove(path, n, validate.Count{"replicas", st.Replicas})...)
	}
	errs = append(errs, validate.NotAbove(path, validate.Count{"availableReplicas", st.AvailableReplicas},
		validate.Count{"readyReplicas", st.ReadyReplicas})...)
	return append(errs, collisionCount(path.Child("collisionCount"), st.CollisionCount, old.Status.CollisionCount)...)
}
