package api

import (
	"math"
	"regexp"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func validateJob(j *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateJobSpec(&j.Spec, path)
	if j.Spec.Selector == nil {
		return append(errs, field.Required(path.Child("selector"), ""))
	}
	errs = append(errs, selector(j.Spec.Selector, path.Child("selector"))...)
	if parsed, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !parsed.Matches(labels.Set(j.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), j.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validateJobSpec checks what jobs and the templates of cron jobs share: all but the selector.
func validateJobSpec(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := nonNegativePtr(path.Child("parallelism"), spec.Parallelism)
	errs = append(errs, nonNegativePtr(path.Child("completions"), spec.Completions)...)
	errs = append(errs, nonNegativePtr(path.Child("activeDeadlineSeconds"), spec.ActiveDeadlineSeconds)...)
	errs = append(errs, nonNegativePtr(path.Child("backoffLimit"), spec.BackoffLimit)...)
	errs = append(errs, nonNegativePtr(path.Child("ttlSecondsAfterFinished"), spec.TTLSecondsAfterFinished)...)
	errs = append(errs, nonNegativePtr(path.Child("backoffLimitPerIndex"), spec.BackoffLimitPerIndex)...)
	errs = append(errs, nonNegativePtr(path.Child("maxFailedIndexes"), spec.MaxFailedIndexes)...)
	errs = append(errs, validateJobIndexes(spec, path)...)
	if by := spec.ManagedBy; by != nil {
		errs = append(errs, utilvalidation.IsDomainPrefixedPath(path.Child("managedBy"), *by)...)
		if len(*by) > 63 {
			errs = append(errs, field.TooLong(path.Child("managedBy"), *by, 63))
		}
	}
	if p := spec.PodReplacementPolicy; p != nil {
		at := path.Child("podReplacementPolicy")
		if spec.PodFailurePolicy != nil {
			errs = append(errs, oneOf(at, *p, batchv1.Failed)...)
		} else {
			errs = append(errs, oneOf(at, *p, batchv1.Failed, batchv1.TerminatingOrFailed)...)
		}
	}
	errs = append(errs, validatePodFailurePolicy(spec, path.Child("podFailurePolicy"))...)
	errs = append(errs, validatePodTemplate(&spec.Template, path.Child("template"))...)
	at := path.Child("template", "spec", "restartPolicy")
	switch spec.Template.Spec.RestartPolicy {
	case corev1.RestartPolicyOnFailure:
		if spec.PodFailurePolicy != nil {
			errs = append(errs, field.Invalid(at, corev1.RestartPolicyOnFailure, "only \"Never\" is supported when podFailurePolicy is specified"))
		}
	case corev1.RestartPolicyNever:
	case corev1.RestartPolicyAlways:
		errs = append(errs, field.Required(at, "valid values: \"OnFailure\", \"Never\""))
	}
	return errs
}

func validateJobIndexes(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	mode := ptr.Deref(spec.CompletionMode, batchv1.NonIndexedCompletion)
	errs = append(errs, oneOf(path.Child("completionMode"), mode, batchv1.IndexedCompletion, batchv1.NonIndexedCompletion)...)
	indexed := mode == batchv1.IndexedCompletion
	if indexed {
		if spec.Completions == nil {
			errs = append(errs, field.Required(path.Child("completions"), "when completion mode is Indexed"))
		}
		const limit = 100000
		if spec.Parallelism != nil && *spec.Parallelism > limit && deref(spec.Completions) > limit {
			errs = append(errs, field.Invalid(path.Child("parallelism"), *spec.Parallelism, "must be less than or equal to 100000 when completion mode is Indexed"))
		}
	} else {
		if spec.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *spec.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if spec.SuccessPolicy != nil {
			errs = append(errs, field.Invalid(path.Child("successPolicy"), spec.SuccessPolicy, "requires indexed completion mode"))
		}
	}
	if spec.MaxFailedIndexes != nil && spec.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if n := spec.MaxFailedIndexes; n != nil && spec.Completions != nil && *n > *spec.Completions {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *n, "must be less than or equal to completions"))
	}
	if indexed && spec.SuccessPolicy != nil {
		errs = append(errs, validateSuccessPolicy(spec, path.Child("successPolicy", "rules"))...)
	}
	return errs
}

var indexIntervals = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)

func validateSuccessPolicy(spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	rules := spec.SuccessPolicy.Rules
	if len(rules) == 0 {
		return field.ErrorList{field.Required(path, "at least one rules must be specified when the successPolicy is specified")}
	}
	var errs field.ErrorList
	if len(rules) > 20 {
		errs = append(errs, field.TooMany(path, len(rules), 20))
	}
	for i, r := range rules {
		at := path.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			errs = append(errs, field.Required(at, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		if s := r.SucceededIndexes; s != nil && !indexIntervals.MatchString(*s) {
			errs = append(errs, field.Invalid(at.Child("succeededIndexes"), *s, "error parsing succeededIndexes"))
		}
		if n := r.SucceededCount; n != nil {
			errs = append(errs, nonNegative(at.Child("succeededCount"), *n)...)
			if *n > deref(spec.Completions) {
				errs = append(errs, field.Invalid(at.Child("succeededCount"), *n, "must be less than or equal to the number of specified completions"))
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
		at := rules.Index(i)
		errs = append(errs, requiredOneOf(at.Child("action"), r.Action, batchv1.PodFailurePolicyActionCount,
			batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore)...)
		if r.Action == batchv1.PodFailurePolicyActionFailIndex && spec.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
		}
		if c := r.OnExitCodes; c != nil {
			errs = append(errs, validateExitCodes(c, spec, at.Child("onExitCodes"))...)
		}
		for k, c := range r.OnPodConditions {
			at := at.Child("onPodConditions").Index(k)
			errs = append(errs, qualifiedName(at.Child("type"), string(c.Type))...)
			errs = append(errs, requiredOneOf(at.Child("status"), c.Status, corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown)...)
		}
	}
	return errs
}

func validateExitCodes(c *batchv1.PodFailurePolicyOnExitCodesRequirement, spec *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := requiredOneOf(path.Child("operator"), c.Operator, batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn)
	if name := c.ContainerName; name != nil && !namesContainer(&spec.Template.Spec, *name) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *name, "must be one of the container or initContainer names in the pod template"))
	}
	values := path.Child("values")
	if len(c.Values) == 0 {
		errs = append(errs, field.Invalid(values, c.Values, "at least one value is required"))
	} else if len(c.Values) > 255 {
		errs = append(errs, field.TooMany(values, len(c.Values), 255))
	}
	for i, v := range c.Values {
		if v == 0 && c.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(values.Index(i), v, "must not be 0 for the In operator"))
		}
		if slices.Contains(c.Values[:i], v) {
			errs = append(errs, field.Duplicate(values.Index(i), v))
		} else if i > 0 && v < c.Values[i-1] {
			errs = append(errs, field.Invalid(values, c.Values, "must be ordered"))
			break
		}
	}
	return errs
}

// validateJobUpdate fixes what the pods made so far depend on. Two doors are open: an
// indexed job may be resized as a whole, and a job that waits suspended may still be told
// where its pods shall run.
func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	path, is, was := field.NewPath("spec"), &j.Spec, &old.Spec
	errs := validateCompletionsUpdate(is, was, path)
	errs = append(errs, unchanged(is.Selector, was.Selector, path.Child("selector"))...)
	errs = append(errs, unchanged(is.CompletionMode, was.CompletionMode, path.Child("completionMode"))...)
	errs = append(errs, unchanged(is.PodFailurePolicy, was.PodFailurePolicy, path.Child("podFailurePolicy"))...)
	errs = append(errs, unchanged(is.BackoffLimitPerIndex, was.BackoffLimitPerIndex, path.Child("backoffLimitPerIndex"))...)
	errs = append(errs, unchanged(is.ManagedBy, was.ManagedBy, path.Child("managedBy"))...)
	errs = append(errs, unchanged(is.SuccessPolicy, was.SuccessPolicy, path.Child("successPolicy"))...)

	template := is.Template.DeepCopy()
	if isTrue(was.Suspend) && old.Status.StartTime == nil {
		keepSchedulingDirectives(template, &was.Template)
	}
	return append(errs, unchanged(*template, was.Template, path.Child("template"))...)
}

func keepSchedulingDirectives(to, from *corev1.PodTemplateSpec) {
	to.Labels, to.Annotations = from.Labels, from.Annotations
	to.Spec.NodeSelector, to.Spec.Tolerations = from.Spec.NodeSelector, from.Spec.Tolerations
	to.Spec.SchedulingGates = from.Spec.SchedulingGates
	switch {
	case to.Spec.Affinity == nil && from.Spec.Affinity == nil:
	case from.Spec.Affinity == nil:
		if to.Spec.Affinity.NodeAffinity = nil; *to.Spec.Affinity == (corev1.Affinity{}) {
			to.Spec.Affinity = nil
		}
	case to.Spec.Affinity == nil:
		to.Spec.Affinity = &corev1.Affinity{NodeAffinity: from.Spec.Affinity.NodeAffinity}
	default:
		to.Spec.Affinity.NodeAffinity = from.Spec.Affinity.NodeAffinity
	}
	for i := range to.Spec.Containers {
		if i < len(from.Spec.Containers) && to.Spec.Containers[i].Name == from.Spec.Containers[i].Name {
			to.Spec.Containers[i].Resources = from.Spec.Containers[i].Resources
		}
	}
}

func validateCompletionsUpdate(is, was *batchv1.JobSpec, path *field.Path) field.ErrorList {
	at := path.Child("completions")
	if equality.Semantic.DeepEqual(is.Completions, was.Completions) {
		return nil
	}
	if ptr.Deref(was.CompletionMode, "") != batchv1.IndexedCompletion {
		return unchanged(is.Completions, was.Completions, at)
	}
	if is.Completions == nil || was.Completions == nil || is.Parallelism == nil || was.Parallelism == nil ||
		*is.Completions != *is.Parallelism || *was.Completions != *was.Parallelism {
		return field.ErrorList{field.Invalid(at, is.Completions, immutableField+" unless in tandem with parallelism")}
	}
	return nil
}

func validateJobStatus(j, old *batchv1.Job) field.ErrorList {
	path, s := field.NewPath("status"), &j.Status
	errs := counts(path, []count{{"active", s.Active}, {"succeeded", s.Succeeded}, {"failed", s.Failed}})
	errs = append(errs, nonNegativePtr(path.Child("ready"), s.Ready)...)
	errs = append(errs, nonNegativePtr(path.Child("terminating"), s.Terminating)...)
	if s.Ready != nil && s.Active < math.MaxInt32 && *s.Ready > s.Active {
		errs = append(errs, field.Invalid(path.Child("ready"), *s.Ready, "cannot set more ready pods than active"))
	}
	finished := func(j *batchv1.Job, kind batchv1.JobConditionType) bool {
		return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == kind && c.Status == corev1.ConditionTrue
		})
	}
	for _, kind := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		if finished(old, kind) && !finished(j, kind) {
			errs = append(errs, field.Invalid(path.Child("conditions"), field.OmitValueType{}, "cannot disable the terminal "+string(kind)+"=True condition"))
		}
	}
	if finished(j, batchv1.JobComplete) && finished(j, batchv1.JobFailed) {
		errs = append(errs, field.Invalid(path.Child("conditions"), field.OmitValueType{}, "cannot set Complete=True and Failed=true conditions"))
	}
	if s.CompletionTime != nil && !finished(j, batchv1.JobComplete) {
		errs = append(errs, field.Invalid(path.Child("completionTime"), s.CompletionTime, "cannot set completionTime when there is no Complete=True condition"))
	}
	return errs
}
