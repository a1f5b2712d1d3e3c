package api

import (
	"fmt"
	"maps"
	"math"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
)

func jobs() *Resource {
	return &Resource{
		Group: "batch", Version: "v1", Kind: "Job", Plural: "jobs", Namespaced: true,
		Categories: []string{"all"},
		New:        func() Object { return &batchv1.Job{} },
		NewList:    func() runtime.Object { return &batchv1.JobList{} },

		Default:        with(defaultJob),
		PrepareCreate:  with(prepareJob),
		Validate:       checked(validateJob),
		ValidateCreate: checked(validateNewJob),
		ValidateUpdate: checked2(validateJobUpdate),
		Warnings: warned2(func(j, old *batchv1.Job) []string {
			if old != nil && old.Generation == j.Generation {
				return nil
			}
			return append(warnWorkloadName(j, old), warnJobSpec(&j.Spec, field.NewPath("spec"))...)
		}),
		Status: statusOf(
			func(j *batchv1.Job) *batchv1.JobStatus { return &j.Status },
			(*batchv1.JobStatus).DeepCopy,
		).withMetadata(AllMetadata).checkedBy(checked2(validateJobStatus)),
		Generation: true,
		Fields:     []string{"status.successful"},
		FieldPaths: map[string]string{"status.successful": "status.succeeded"},
		FieldZero:  map[string]string{"status.successful": "0"},
		// As for replication controllers, the pods stay unless the delete says otherwise.
		DefaultPropagation: metav1.DeletePropagationOrphan,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", "Status of the job."),
			column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
			column("Duration", "string", "Time required to complete the job."),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(j *batchv1.Job) []any {
			names, images := containerCells(j.Spec.Template.Spec.Containers)
			return []any{
				j.Name, jobStatusCell(j), completionsCell(j), jobDurationCell(j), age(j.CreationTimestamp),
				names, images, selectorCell(j.Spec.Selector),
			}
		}),
	}
}

func defaultJob(j *batchv1.Job) {
	defaultJobSpec(&j.Spec)
	setDefaultPtr(&j.Spec.ManualSelector, false)
	if len(j.Labels) == 0 && len(j.Spec.Template.Labels) > 0 {
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
}

func defaultJobSpec(spec *batchv1.JobSpec) {
	if spec.Completions == nil && spec.Parallelism == nil {
		spec.Completions = ptr.To[int32](1)
	}
	setDefaultPtr(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		setDefaultPtr(&spec.BackoffLimit, math.MaxInt32)
	}
	setDefaultPtr(&spec.BackoffLimit, 6)
	setDefaultPtr(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	setDefaultPtr(&spec.Suspend, false)
	if spec.PodFailurePolicy == nil {
		setDefaultPtr(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	} else {
		setDefaultPtr(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	defaultFailurePolicy(spec.PodFailurePolicy)
	defaultPodSpec(&spec.Template.Spec)
}

func defaultFailurePolicy(p *batchv1.PodFailurePolicy) {
	if p == nil {
		return
	}
	for i := range p.Rules {
		conditions := p.Rules[i].OnPodConditions
		for j := range conditions {
			setDefault(&conditions[j].Status, corev1.ConditionTrue)
		}
	}
}

// The labels that pods of a job had before labels were given a domain.
const (
	legacyControllerUID = "controller-uid"
	legacyJobName       = "job-name"
)

// prepareJob makes the selector by which a job knows its pods, unless its author wants to
// choose it. The server has given uid and name by now. The labels without a
// prefix are older, and still relied upon.
func prepareJob(j *batchv1.Job) {
	if isTrue(j.Spec.ManualSelector) {
		return
	}
	t := &j.Spec.Template
	if t.Labels == nil {
		t.Labels = make(map[string]string, 4)
	}
	for key, value := range map[string]string{
		batchv1.ControllerUidLabel: string(j.UID), legacyControllerUID: string(j.UID),
		batchv1.JobNameLabel: j.Name, legacyJobName: j.Name,
	} {
		if _, ok := t.Labels[key]; !ok {
			t.Labels[key] = value
		}
	}
	setDefaultPtr(&j.Spec.Selector, metav1.LabelSelector{})
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = make(map[string]string, 1)
	}
	if _, ok := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !ok {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

// warnJobSpec tells of a job so large that its failed indexes may not all be remembered.
func warnJobSpec(spec *batchv1.JobSpec, path *field.Path) []string {
	var w warnings
	if ptr.Deref(spec.CompletionMode, "") == batchv1.IndexedCompletion && deref(spec.Completions) > 100_000 && deref(spec.Parallelism) > 10_000 {
		w.add(path, "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail")
	}
	return append(w, warnPodTemplate(&spec.Template, path.Child("template"))...)
}

func jobStatusCell(j *batchv1.Job) string {
	has := func(kind batchv1.JobConditionType) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	}
	switch {
	case has(batchv1.JobComplete):
		return "Complete"
	case has(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case has(batchv1.JobSuspended):
		return "Suspended"
	case has(batchv1.JobFailureTarget):
		return "FailureTarget"
	case has(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	default:
		return "Running"
	}
}

func completionsCell(j *batchv1.Job) string {
	switch parallelism := deref(j.Spec.Parallelism); {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case parallelism > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallelism)
	default:
		return fmt.Sprintf("%d/1", j.Status.Succeeded)
	}
}

func jobDurationCell(j *batchv1.Job) string {
	switch {
	case j.Status.StartTime == nil:
		return ""
	case j.Status.CompletionTime == nil:
		return duration.HumanDuration(time.Since(j.Status.StartTime.Time))
	default:
		return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
	}
}
