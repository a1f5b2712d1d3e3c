package api

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func statefulSets() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "StatefulSet", Plural: "statefulsets", Namespaced: true,
		ShortNames: []string{"sts"},
		Categories: []string{"all"},
		New:        func() Object { return &appsv1.StatefulSet{} },
		NewList:    func() runtime.Object { return &appsv1.StatefulSetList{} },

		Default:        with(defaultStatefulSet),
		Validate:       checked(validateStatefulSet),
		ValidateUpdate: checked2(validateStatefulSetUpdate),
		Status: statusOf(
			func(s *appsv1.StatefulSet) *appsv1.StatefulSetStatus { return &s.Status },
			(*appsv1.StatefulSetStatus).DeepCopy,
		).checkedBy(checked2(validateStatefulSetStatus)),
		Scale: &Scale{
			Get: func(obj Object) (int32, int32, string) {
				s := obj.(*appsv1.StatefulSet)
				return deref(s.Spec.Replicas), s.Status.Replicas, selectorString(s.Spec.Selector)
			},
			Set: func(obj Object, n int32) { obj.(*appsv1.StatefulSet).Spec.Replicas = &n },
		},
		Generation: true,

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
	errs := requiredOneOf(path.Child("podManagementPolicy"), spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)
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
	errs = append(errs, nonNegativePtr(path.Child("revisionHistoryLimit"), spec.RevisionHistoryLimit)...)
	if spec.Ordinals != nil {
		errs = append(errs, nonNegative(path.Child("ordinals", "start"), spec.Ordinals.Start)...)
	}
	if spec.ServiceName != "" {
		errs = append(errs, dnsSubdomain(path.Child("serviceName"), spec.ServiceName)...)
	}
	for i := range spec.VolumeClaimTemplates {
		errs = append(errs, validateClaimSpec(&spec.VolumeClaimTemplates[i].Spec, path.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
	}
	errs = append(errs, validateSelectorMatches("StatefulSet", spec.Selector, spec.Template.Labels, path)...)
	template := spec.Template.DeepCopy()
	for _, claim := range spec.VolumeClaimTemplates {
		addClaimVolume(template, claim.Name)
	}
	errs = append(errs, validatePodTemplate(template, path.Child("template"))...)
	return append(errs, runsForEver("StatefulSet", &spec.Template.Spec, path.Child("template", "spec"))...)
}

func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case "":
		return field.ErrorList{field.Required(path.Child("type"), "")}
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
		return field.ErrorList{field.Invalid(path, s.Type, fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType, appsv1.OnDeleteStatefulSetStrategyType))}
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
		errs = append(errs, notAbove(path, n, count{"replicas", st.Replicas})...)
	}
	errs = append(errs, notAbove(path, count{"availableReplicas", st.AvailableReplicas}, count{"readyReplicas", st.ReadyReplicas})...)
	return append(errs, collisionCount(path.Child("collisionCount"), st.CollisionCount, old.Status.CollisionCount)...)
}

func daemonSets() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Namespaced: true,
		ShortNames: []string{"ds"},
		Categories: []string{"all"},
		New:        func() Object { return &appsv1.DaemonSet{} },
		NewList:    func() runtime.Object { return &appsv1.DaemonSetList{} },

		Default:        with(defaultDaemonSet),
		Validate:       checked(validateDaemonSet),
		ValidateUpdate: checked2(validateDaemonSetUpdate),
		Status: statusOf(
			func(d *appsv1.DaemonSet) *appsv1.DaemonSetStatus { return &d.Status },
			(*appsv1.DaemonSetStatus).DeepCopy,
		).checkedBy(checked2(validateDaemonSetStatus)),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Desired", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
			column("Current", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
			column("Ready", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
			column("Up-to-date", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
			column("Available", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
			column("Node Selector", "string", "NodeSelector is a selector which must be true for the pod to fit on a node."),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(d *appsv1.DaemonSet) []any {
			names, images := containerCells(d.Spec.Template.Spec.Containers)
			return []any{
				d.Name, int64(d.Status.DesiredNumberScheduled), int64(d.Status.CurrentNumberScheduled), int64(d.Status.NumberReady),
				int64(d.Status.UpdatedNumberScheduled), int64(d.Status.NumberAvailable), labelsCell(d.Spec.Template.Spec.NodeSelector),
				age(d.CreationTimestamp), names, images, selectorCell(d.Spec.Selector),
			}
		}),
	}
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	s := &d.Spec.UpdateStrategy
	setDefault(&s.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if s.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		setDefaultPtr(&s.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		setDefaultPtr(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setDefaultPtr(&s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setDefaultPtr(&d.Spec.RevisionHistoryLimit, 10)
	defaultPodSpec(&d.Spec.Template.Spec)
}

func validateDaemonSet(d *appsv1.DaemonSet) field.ErrorList {
	path, spec := field.NewPath("spec"), &d.Spec
	errs := validateSelectorAndTemplate("DaemonSet", spec.Selector, &spec.Template, path)
	errs = append(errs, nonNegative(path.Child("minReadySeconds"), spec.MinReadySeconds)...)
	errs = append(errs, nonNegativePtr(path.Child("revisionHistoryLimit"), spec.RevisionHistoryLimit)...)
	at := path.Child("updateStrategy")
	switch spec.UpdateStrategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		r := spec.UpdateStrategy.RollingUpdate
		if r == nil {
			return append(errs, field.Required(at.Child("rollingUpdate"), ""))
		}
		errs = append(errs, validateDaemonRolling(r, at.Child("rollingUpdate"))...)
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), spec.UpdateStrategy.Type, []appsv1.DaemonSetUpdateStrategyType{
			appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType}))
	}
	return errs
}

// validateDaemonRolling wants exactly one of the two bounds to be more than nothing: on each
// node the new pod either follows the old one or runs beside it.
func validateDaemonRolling(r *appsv1.RollingUpdateDaemonSet, path *field.Path) field.ErrorList {
	u, s := intstr.FromInt32(0), intstr.FromInt32(0)
	if r.MaxUnavailable != nil {
		u = *r.MaxUnavailable
	}
	if r.MaxSurge != nil {
		s = *r.MaxSurge
	}
	errs := countOrPercent(path.Child("maxUnavailable"), u)
	errs = append(errs, notOver100Percent(path.Child("maxUnavailable"), u)...)
	errs = append(errs, countOrPercent(path.Child("maxSurge"), s)...)
	errs = append(errs, notOver100Percent(path.Child("maxSurge"), s)...)
	switch noUnavailable, noSurge := percentOrCountIsZero(u), percentOrCountIsZero(s); {
	case noUnavailable && noSurge:
		errs = append(errs, field.Invalid(path.Child("maxUnavailable"), u, "cannot be 0 when maxSurge is 0"))
	case !noUnavailable && !noSurge:
		errs = append(errs, field.Invalid(path.Child("maxSurge"), s, "may not be set when maxUnavailable is non-zero"))
	}
	return errs
}

func validateDaemonSetUpdate(d, old *appsv1.DaemonSet) field.ErrorList {
	return unchanged(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
}

func validateDaemonSetStatus(d, old *appsv1.DaemonSet) field.ErrorList {
	path, s := field.NewPath("status"), &d.Status
	errs := counts(path, []count{
		{"currentNumberScheduled", s.CurrentNumberScheduled}, {"numberMisscheduled", s.NumberMisscheduled},
		{"desiredNumberScheduled", s.DesiredNumberScheduled}, {"numberReady", s.NumberReady},
		{"updatedNumberScheduled", s.UpdatedNumberScheduled}, {"numberAvailable", s.NumberAvailable},
		{"numberUnavailable", s.NumberUnavailable},
	})
	errs = append(errs, nonNegative(path.Child("observedGeneration"), s.ObservedGeneration)...)
	return append(errs, collisionCount(path.Child("collisionCount"), s.CollisionCount, old.Status.CollisionCount)...)
}

func controllerRevisions() *Resource {
	return &Resource{
		Group: "apps", Version: "v1", Kind: "ControllerRevision", Plural: "controllerrevisions", Namespaced: true,
		New:     func() Object { return &appsv1.ControllerRevision{} },
		NewList: func() runtime.Object { return &appsv1.ControllerRevisionList{} },

		Validate: checked(func(r *appsv1.ControllerRevision) field.ErrorList {
			errs := nonNegative(field.NewPath("revision"), r.Revision)
			if len(r.Data.Raw) == 0 && r.Data.Object == nil {
				errs = append(errs, field.Required(field.NewPath("data"), "data is mandatory"))
			}
			return errs
		}),
		ValidateUpdate: checked2(func(r, old *appsv1.ControllerRevision) field.ErrorList {
			return unchanged(r.Data, old.Data, field.NewPath("data"))
		}),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Controller", "string", "Controller of the object"),
			column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
			ageColumn,
		},
		Cells: row(func(r *appsv1.ControllerRevision) []any {
			controller := none
			if owner := metav1.GetControllerOf(r); owner != nil {
				controller = ownerCell(owner)
			}
			return []any{r.Name, controller, r.Revision, age(r.CreationTimestamp)}
		}),
	}
}
