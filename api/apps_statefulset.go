package api

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func statefulSets() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "StatefulSet", Plural: "statefulsets", Namespaced: true,
		ShortNames: []string{"sts"},
		Categories: []string{"all"},
		New:        func() Object { return &appsv1.StatefulSet{} },
		NewList:    func() runtime.Object { return &appsv1.StatefulSetList{} },

		Default:        with(defaultStatefulSet),
		ValidateName:   naming.NameIsDNSLabel,
		Validate:       checked(validateStatefulSet),
		ValidateCreate: checked(validateNewStatefulSet),
		ValidateUpdate: checked2(validateStatefulSetUpdate),
		Status: statusOf(
			func(s *appsv1.StatefulSet) *appsv1.StatefulSetStatus { return &s.Status },
			(*appsv1.StatefulSetStatus).DeepCopy,
		).withMetadata(AllMetadata).checkedBy(checked2(validateStatefulSetStatus)),
		Scale: &Scale{
			Get: func(obj Object) (int32, int32, string) {
				s := obj.(*appsv1.StatefulSet)
				return deref(s.Spec.Replicas), s.Status.Replicas, selectorString(s.Spec.Selector)
			},
			Set: func(obj Object, n int32) { obj.(*appsv1.StatefulSet).Spec.Replicas = &n },
		},
		Generation: true,
		Warnings:   warned2(warnStatefulSet),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Ready", "string", "Number of the pod with ready state"),
			ageColumn, containersColumn, imagesColumn,
		},
		Cells: row(func(s *appsv1.StatefulSet) []any {
			names, images := containerCells(s.Spec.Template.Spec.Containers)
			return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, deref(s.Spec.Replicas)), age(s.CreationTimestamp), names, images}
		}),
	}
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	spec := &s.Spec
	setDefault(&spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	setDefault(&spec.UpdateStrategy.Type, appsv1.RollingUpdateStatefulSetStrategyType)
	if spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		setDefaultPtr(&spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
		setDefaultPtr(&spec.UpdateStrategy.RollingUpdate.Partition, 0)
		setDefaultPtr(&spec.UpdateStrategy.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	setDefaultPtr(&spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	setDefault(&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	setDefault(&spec.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	setDefaultPtr(&spec.Replicas, 1)
	setDefaultPtr(&spec.RevisionHistoryLimit, 10)
	for i := range spec.VolumeClaimTemplates {
		claim := &spec.VolumeClaimTemplates[i]
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		setDefault(&claim.Status.Phase, "Pending")
		defaultClaimSpec(&claim.Spec)
	}
	defaultPodSpec(&spec.Template.Spec)
}

func validateStatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	path, spec := field.NewPath("spec"), &s.Spec
	var errs field.ErrorList
	switch at := path.Child("podManagementPolicy"); spec.PodManagementPolicy {
	case "":
		errs = append(errs, field.Required(at, ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(at, spec.PodManagementPolicy, fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	if p := spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := path.Child("persistentVolumeClaimRetentionPolicy")
		for name, policy := range map[string]appsv1.PersistentVolumeClaimRetentionPolicyType{"whenDeleted": p.WhenDeleted, "whenScaled": p.WhenScaled} {
			errs = append(errs, oneOf(at.Child(name), policy,
				appsv1.DeletePersistentVolumeClaimRetentionPolicyType, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)...)
		}
	}
	errs = append(errs, nonNegativePtr(path.Child("replicas"), spec.Replicas)...)
	errs = append(errs, nonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	if spec.Ordinals != nil {
		errs = append(errs, nonNegative(path.Child("ordinals", "start"), spec.Ordinals.Start)...)
	}
	errs = append(errs, validateOwnSelector("statefulset", spec.Selector, path.Child("selector"))...)
	if parsed, err := metav1.LabelSelectorAsSelector(spec.Selector); err != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), spec.Selector, ""))
	} else {
		errs = append(errs, selectsTemplate(parsed, spec.Template.Labels, path)...)
		errs = append(errs, validatePodTemplate(podTemplateOf(spec), path.Child("template"))...)
	}
	return append(errs, runsForEver("StatefulSet", &spec.Template.Spec, path.Child("template", "spec"))...)
}

// validateNewStatefulSet checks what an update cannot change: objects from before the rule keep it.
func validateNewStatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	var errs field.ErrorList
	path, spec := field.NewPath("spec"), &s.Spec
	if spec.ServiceName != "" {
		errs = append(errs, dnsLabel(path.Child("serviceName"), spec.ServiceName)...)
	}
	for i := range spec.VolumeClaimTemplates {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateClaimSpec(&spec.VolumeClaimTemplates[i].Spec, path.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	return errs
}

func warnStatefulSet(s, old *appsv1.StatefulSet) []string {
	if old != nil && old.Generation == s.Generation {
		return nil
	}
	warnings := warnPodTemplate(&s.Spec.Template, field.NewPath("spec", "template"))
	for i := range s.Spec.VolumeClaimTemplates {
		warnings = append(warnings, warnClaimSpec(&s.Spec.VolumeClaimTemplates[i].Spec, field.NewPath("spec", "volumeClaimTemplates").Index(i))...)
	}
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}

func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(path, "")}
	case appsv1.OnDeleteStatefulSetStrategyType:
		if s.RollingUpdate != nil {
			return field.ErrorList{field.Invalid(path.Child("rollingUpdate"), s.RollingUpdate, fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			return nil
		}
		at := path.Child("rollingUpdate")
		errs := nonNegativePtr(at.Child("partition"), s.RollingUpdate.Partition)
		if u := s.RollingUpdate.MaxUnavailable; u != nil {
			at := at.Child("maxUnavailable")
			errs = append(errs, countOrPercent(at, *u)...)
			if percentOrCountIsZero(*u) {
				errs = append(errs, field.Invalid(at, *u, "cannot be 0"))
			}
			errs = append(errs, notOver100Percent(at, *u)...)
		}
		return errs
	default:
		return field.ErrorList{field.Invalid(path, s, fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType))}
	}
}

// validateStatefulSetUpdate fixes what the identity of the pods and their volumes rests on.
func validateStatefulSetUpdate(s, old *appsv1.StatefulSet) field.ErrorList {
	rest := s.Spec.DeepCopy()
	rest.Replicas, rest.Template, rest.UpdateStrategy = old.Spec.Replicas, old.Spec.Template, old.Spec.UpdateStrategy
	rest.MinReadySeconds, rest.Ordinals = old.Spec.MinReadySeconds, old.Spec.Ordinals
	rest.PersistentVolumeClaimRetentionPolicy = old.Spec.PersistentVolumeClaimRetentionPolicy
	rest.RevisionHistoryLimit = old.Spec.RevisionHistoryLimit
	if equality.Semantic.DeepEqual(rest, &old.Spec) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec"), "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden")}
}

func validateStatefulSetStatus(s, old *appsv1.StatefulSet) field.ErrorList {
	path, st := field.NewPath("status"), &s.Status
	parts := []count{{"readyReplicas", st.ReadyReplicas}, {"currentReplicas", st.CurrentReplicas}, {"updatedReplicas", st.UpdatedReplicas}, {"availableReplicas", st.AvailableReplicas}}
	errs := counts(path, append(parts, count{"replicas", st.Replicas}))
	errs = append(errs, nonNegative(path.Child("observedGeneration"), st.ObservedGeneration)...)
	for _, n := range parts {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, notAbove(path, n, count{"replicas", st.Replicas})...)
	}
	errs = append(errs, notAbove(path, count{"availableReplicas", st.AvailableReplicas}, count{"readyReplicas", st.ReadyReplicas})...)
	return append(errs, collisionCount(path.Child("collisionCount"), st.CollisionCount, old.Status.CollisionCount)...)
}
