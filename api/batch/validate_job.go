package batch

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func validateJob(j *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateJobSpec(&j.Spec, path)
	if j.Spec.Selector == nil {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	} else {
		errs = append(errs, validate.Selector(j.Spec.Selector, path.Child("selector"))...)
	}
	if parsed, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil {
		errs = append(errs, podspec.ValidateSelectsTemplate(parsed, j.Spec.Template.Labels, path)...)
	}
	return errs
}

func validateNewJob(j *batchv1.Job) field.ErrorList {
	errs := validateGeneratedSelector(j)
	if n := ptr.Deref(j.Spec.Completions, 0); n > 0 && isIndexed(j) {
		// The host name of the last pod is the longest.
		if last := fmt.Sprintf("%s-%d", j.Name, n-1); len(naming.IsDNS1123Label(last)) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), j.Name,
				"will not able to create pod with invalid DNS label: "+last))
		}
	}
	return errs
}

func isIndexed(j *batchv1.Job) bool {
	return ptr.Deref(j.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// validateGeneratedSelector requires the selector and the labels that keep two jobs from selecting the same pods,
// unless spec.manualSelector is set.
func validateGeneratedSelector(j *batchv1.Job) field.ErrorList {
	if ptr.Deref(j.Spec.ManualSelector, false) || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	path := field.NewPath("spec")
	labelsPath, uid := path.Child("template", "metadata", "labels"), string(j.UID)
	own := labels.Set{legacyControllerUID: uid, batchv1.ControllerUidLabel: uid, legacyJobName: j.Name,
		batchv1.JobNameLabel: j.Name}
	for _, key := range []string{legacyControllerUID, legacyJobName, batchv1.ControllerUidLabel, batchv1.JobNameLabel} {
		switch value, ok := j.Spec.Template.Labels[key]; {
		case !ok:
			errs = append(errs, field.Required(labelsPath.Key(key), fmt.Sprintf("must be '%s'", own[key])))
		case value != own[key]:
			errs = append(errs, field.Invalid(labelsPath.Key(key), j.Spec.Template.Labels,
				fmt.Sprintf("must be '%s'", own[key])))
		}
	}
	if s, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !s.Matches(own) {
		errs = append(errs, field.Invalid(path.Child("selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

// validateJobSpec makes the checks that jobs and the templates of cron jobs share: all except the selector's.
func validateJobSpec(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := validate.NonNegativePtr(path.Child("parallelism"), spec.Parallelism)
	errs = append(errs, validate.NonNegativePtr(path.Child("completions"), spec.Completions)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("activeDeadlineSeconds"), spec.ActiveDeadlineSeconds)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("backoffLimit"), spec.BackoffLimit)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("ttlSecondsAfterFinished"), spec.TTLSecondsAfterFinished)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("backoffLimitPerIndex"), spec.BackoffLimitPerIndex)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("maxFailedIndexes"), spec.MaxFailedIndexes)...)
	errs = append(errs, validateJobIndexes(spec, path)...)
	if controller := spec.ManagedBy; controller != nil {
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(path.Child("managedBy").Plain(), *controller)...)
		if len(*controller) > 63 {
			errs = append(errs, field.TooLong(path.Child("managedBy"), "", 63))
		}
	}
	if p := spec.PodReplacementPolicy; p != nil {
		fldPath := path.Child("podReplacementPolicy")
		if spec.PodFailurePolicy != nil {
			errs = append(errs, validate.OneOf(fldPath, *p, batchv1.Failed)...)
		} else {
			errs = append(errs, validate.OneOf(fldPath, *p, batchv1.Failed, batchv1.TerminatingOrFailed)...)
		}
	}
	errs = append(errs, validatePodFailurePolicy(spec, path.Child("podFailurePolicy"))...)
	errs = append(errs, podspec.ValidateTemplate(&spec.Template, path.Child("template"))...)
	fldPath := path.Child("template", "spec", "restartPolicy")
	switch spec.Template.Spec.RestartPolicy {
	case corev1.RestartPolicyOnFailure:
		if spec.PodFailurePolicy != nil {
			errs = append(errs, field.Invalid(fldPath, corev1.RestartPolicyOnFailure,
				"only \"Never\" is supported when podFailurePolicy is specified"))
		}
	case corev1.RestartPolicyNever:
	case corev1.RestartPolicyAlways, "":
		errs = append(errs, field.Required(fldPath, "valid values: \"OnFailure\", \"Never\""))
	default:
		errs = append(errs, field.NotSupported(fldPath, spec.Template.Spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	return errs
}

func validateJobIndexes(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	mode := ptr.Deref(spec.CompletionMode, batchv1.NonIndexedCompletion)
	errs = append(errs, validate.OneOf(path.Child("completionMode"), mode, batchv1.NonIndexedCompletion,
		batchv1.IndexedCompletion)...)
	switch mode {
	case batchv1.IndexedCompletion:
		if spec.Completions == nil {
			errs = append(errs, field.Required(path.Child("completions"), "when completion mode is Indexed"))
		}
		errs = append(errs, validateManyIndexes(spec, path)...)
	case batchv1.NonIndexedCompletion:
		if spec.MaxFailedIndexes != nil {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *spec.MaxFailedIndexes,
				"requires indexed completion mode"))
		}
		if spec.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *spec.BackoffLimitPerIndex,
				"requires indexed completion mode"))
		}
	}
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	switch {
	case spec.SuccessPolicy == nil:
	case mode != batchv1.IndexedCompletion:
		errs = append(errs, field.Invalid(path.Child("successPolicy"), *spec.SuccessPolicy,
			"requires indexed completion mode"))
	default:
		errs = append(errs, validateSuccessPolicy(spec, path.Child("successPolicy", "rules"))...)
	}
	return errs
}

// validateManyIndexes limits the number of indexes that an indexed job's status may have to list.
func validateManyIndexes(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	const limit, limitOfMany = 100_000, 10_000
	var errs field.ErrorList
	tooMany := func(name string, n *int32) {
		if n != nil && *n > limitOfMany {
			errs = append(errs, field.Invalid(path.Child(name), *n, fmt.Sprintf(
				"must be less than or equal to %d when completions are above %d and used with backoff limit per index",
				limitOfMany, limit)))
		}
	}
	if n := spec.Parallelism; n != nil && *n > limit {
		errs = append(errs,
			field.Invalid(path.Child("parallelism"), *n,
				fmt.Sprintf("must be less than or equal to %d when completion mode is Indexed", limit)))
	}
	failed := spec.MaxFailedIndexes
	if failed != nil && spec.Completions != nil && *failed > *spec.Completions {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *failed,
			"must be less than or equal to completions"))
	}
	if failed != nil && *failed > limit {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *failed,
			fmt.Sprintf("must be less than or equal to %d", limit)))
	}
	if ptr.Deref(spec.Completions, 0) <= limit || spec.BackoffLimitPerIndex == nil {
		return errs
	}
	if failed == nil {
		errs = append(errs, field.Required(path.Child("maxFailedIndexes"),
			fmt.Sprintf("must be specified when completions is above %d", limit)))
	}
	tooMany("parallelism", spec.Parallelism)
	tooMany("maxFailedIndexes", failed)
	return errs
}

// validateSuccessPolicy checks a success policy. It also rejects one of a job without completions.
func validateSuccessPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	const mostRules, longest = 20, 64 << 10
	rules, completions := spec.SuccessPolicy.Rules, ptr.Deref(spec.Completions, 0)
	var errs field.ErrorList
	if len(rules) == 0 {
		errs = append(errs,
			field.Required(path, "at least one rules must be specified when the successPolicy is specified"))
	}
	if len(rules) > mostRules {
		errs = append(errs, field.TooMany(path, len(rules), mostRules))
	}
	for i, r := range rules {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			errs = append(errs,
				field.Required(fldPath, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		indexes := 0
		if s := r.SucceededIndexes; s != nil {
			fldPath := fldPath.Child("succeededIndexes")
			if len(*s) > longest {
				errs = append(errs, field.TooLong(fldPath, "", longest))
			}
			list, err := parseIndexes(*s, completions)
			if err != nil {
				errs = append(errs, field.Invalid(fldPath, *s, "error parsing succeededIndexes: "+err.Error()))
			}
			indexes = list.total()
		}
		if n := r.SucceededCount; n != nil {
			fldPath := fldPath.Child("succeededCount")
			errs = append(errs, validate.NonNegative(fldPath, *n)...)
			if *n > completions {
				errs = append(errs, field.Invalid(fldPath, *n, fmt.Sprintf("must be less than or equal to %d (the "+
					"number of specified completions)", completions)))
			}
			if r.SucceededIndexes != nil && int(*n) > indexes {
				errs = append(errs, field.Invalid(fldPath, *n, fmt.Sprintf("must be less than or equal to %d (the "+
					"number of indexes in the specified succeededIndexes field)", indexes)))
			}
		}
	}
	return errs
}

func validatePodFailurePolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if spec.PodFailurePolicy == nil {
		return nil
	}
	var errs field.ErrorList
	rules := path.Child("rules")
	if n := len(spec.PodFailurePolicy.Rules); n > 20 {
		errs = append(errs, field.TooMany(rules, n, 20))
	}
	for i, r := range spec.PodFailurePolicy.Rules {
		if field.Enough(errs) {
			break
		}
		idxPath := rules.Index(i)
		errs = append(errs, validate.RequiredOfThese(idxPath.Child("action"), r.Action,
			batchv1.PodFailurePolicyActionCount,
			batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob,
			batchv1.PodFailurePolicyActionIgnore)...)
		if r.Action == batchv1.PodFailurePolicyActionFailIndex && spec.BackoffLimitPerIndex == nil {
			errs = append(errs,
				field.Invalid(idxPath.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			errs = append(errs, field.Invalid(idxPath, field.OmitValueType{}, "specifying both OnExitCodes and "+
				"OnPodConditions is not supported"))
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			errs = append(errs, field.Invalid(idxPath, field.OmitValueType{}, "specifying one of OnExitCodes and "+
				"OnPodConditions is required"))
		}
		if c := r.OnExitCodes; c != nil {
			errs = append(errs, validateExitCodes(c, spec, idxPath.Child("onExitCodes"))...)
		}
		if n := len(r.OnPodConditions); n > 20 {
			errs = append(errs, field.TooMany(idxPath.Child("onPodConditions"), n, 20))
		}
		for k, c := range r.OnPodConditions {
			if field.Enough(errs) {
				break
			}
			idxPath := idxPath.Child("onPodConditions").Index(k)
			errs = append(errs, validate.QualifiedName(idxPath.Child("type"), string(c.Type))...)
			errs = append(errs, validate.RequiredOfThese(idxPath.Child("status"), c.Status, corev1.ConditionFalse,
				corev1.ConditionTrue, corev1.ConditionUnknown)...)
		}
	}
	return errs
}

func validateExitCodes(c *batchv1.PodFailurePolicyOnExitCodesRequirement, spec *batchv1.JobSpec,
	path *field.Path) field.ErrorList {
	errs := validate.RequiredOfThese(path.Child("operator"), c.Operator, batchv1.PodFailurePolicyOnExitCodesOpIn,
		batchv1.PodFailurePolicyOnExitCodesOpNotIn)
	if name := c.ContainerName; name != nil && !podspec.NamesContainer(&spec.Template.Spec, *name) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *name,
			"must be one of the container or initContainer names in the pod template"))
	}
	values := path.Child("values")
	if len(c.Values) == 0 {
		errs = append(errs, field.Invalid(values, c.Values, "at least one value is required"))
	} else if len(c.Values) > 255 {
		errs = append(errs, field.TooMany(values, len(c.Values), 255))
	}
	var before validate.Seen
	for i, v := range c.Values {
		if field.Enough(errs) {
			break
		}
		if v == 0 && c.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(values.Index(i), v, "must not be 0 for the In operator"))
		}
		if validate.Repeated(&before, c.Values[:i], v) {
			errs = append(errs, field.Duplicate(values.Index(i), v))
		}
	}
	if !slices.IsSorted(c.Values) {
		errs = append(errs, field.Invalid(values, c.Values, "must be ordered"))
	}
	return errs
}

// validateJobUpdate rejects changes of the fields that existing pods depend on, with two exceptions: an indexed job
// may change its parallelism and completions together, and a suspended job may change the scheduling of its pods.
func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	path, is, was := field.NewPath("spec"), &j.Spec, &old.Spec
	errs := validateCompletionsUpdate(is, was, path)
	errs = append(errs, validate.Unchanged(is.Selector, was.Selector, path.Child("selector"))...)
	errs = append(errs, validate.Unchanged(is.CompletionMode, was.CompletionMode, path.Child("completionMode"))...)
	errs = append(errs, validate.Unchanged(is.PodFailurePolicy, was.PodFailurePolicy,
		path.Child("podFailurePolicy"))...)
	errs = append(errs, validate.Unchanged(is.BackoffLimitPerIndex, was.BackoffLimitPerIndex,
		path.Child("backoffLimitPerIndex"))...)
	errs = append(errs, validate.Unchanged(is.ManagedBy, was.ManagedBy, path.Child("managedBy"))...)
	errs = append(errs, validate.Unchanged(is.SuccessPolicy, was.SuccessPolicy, path.Child("successPolicy"))...)

	return append(errs, validateJobTemplateUpdate(is, old, path)...)
}

// validateJobTemplateUpdate lets a suspended job without active pods change its pods' scheduling and
// resources (KEP-2926, KEP-5440).
func validateJobTemplateUpdate(is *batchv1.JobSpec, old *batchv1.Job, path *field.Path) field.ErrorList {
	was := &old.Spec.Template
	stopped := old.Status.StartTime == nil || old.Status.Active == 0 && jobHas(old, batchv1.JobSuspended)
	if !ptr.Deref(old.Spec.Suspend, false) || !stopped {
		return validate.Unchanged(is.Template, *was, path.Child("template"))
	}
	template := is.Template.DeepCopy()
	keepSchedulingDirectives(template, was)
	return validate.Unchanged(template.Spec, was.Spec, path.Child("template", "spec"))
}

func keepSchedulingDirectives(updated, original *corev1.PodTemplateSpec) {
	updated.Labels, updated.Annotations = original.Labels, original.Annotations
	updated.Spec.NodeSelector, updated.Spec.Tolerations = original.Spec.NodeSelector, original.Spec.Tolerations
	updated.Spec.SchedulingGates = original.Spec.SchedulingGates
	switch {
	case updated.Spec.Affinity == nil && original.Spec.Affinity == nil:
	case original.Spec.Affinity == nil:
		if updated.Spec.Affinity.NodeAffinity = nil; *updated.Spec.Affinity == (corev1.Affinity{}) {
			updated.Spec.Affinity = nil
		}
	case updated.Spec.Affinity == nil:
		updated.Spec.Affinity = &corev1.Affinity{NodeAffinity: original.Spec.Affinity.NodeAffinity}
	default:
		updated.Spec.Affinity.NodeAffinity = original.Spec.Affinity.NodeAffinity
	}
	keepResources(updated.Spec.Containers, original.Spec.Containers)
	keepResources(updated.Spec.InitContainers, original.Spec.InitContainers)
}

func keepResources(containers, originals []corev1.Container) {
	if len(containers) != len(originals) {
		return
	}
	for i := range containers {
		if containers[i].Name == originals[i].Name {
			containers[i].Resources = originals[i].Resources
		}
	}
}

func validateCompletionsUpdate(is, was *batchv1.JobSpec, path *field.Path) field.ErrorList {
	fldPath := path.Child("completions")
	if ptr.Deref(is.CompletionMode, "") != batchv1.IndexedCompletion {
		return validate.Unchanged(is.Completions, was.Completions, fldPath)
	}
	if is.Completions == nil || equality.Semantic.DeepEqual(is.Completions, was.Completions) ||
		*is.Completions == ptr.Deref(is.Parallelism, 0) {
		return nil
	}
	return field.ErrorList{
		field.Invalid(fldPath, is.Completions, "can only be modified in tandem with spec.parallelism")}
}
