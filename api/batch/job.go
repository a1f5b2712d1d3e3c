package batch

import (
	"fmt"
	"maps"
	"math"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/warning"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func jobs() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "batch", Version: "v1", Kind: "Job", Plural: "jobs", Namespaced: true,
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:        func() api.Object { return &batchv1.Job{} },
			NewList:    func() runtime.Object { return &batchv1.JobList{} },
			Fields:     []string{"status.successful"},
			FieldPaths: map[string]string{"status.successful": "status.succeeded"},
			FieldZero:  map[string]string{"status.successful": "0"},
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultJob),
			PrepareCreate:  api.Typed(prepareJob),
			Validate:       api.Check(validateJob),
			ValidateCreate: api.Check(validateNewJob),
			ValidateUpdate: api.CheckUpdate(validateJobUpdate),
			Warnings: api.Warn(func(j, old *batchv1.Job) []string {
				if old != nil && old.Generation == j.Generation {
					return nil
				}
				return append(podspec.WarnWorkloadName(j, old), warnJobSpec(&j.Spec, field.NewPath("spec"))...)
			}),
			Status: api.StatusOf(
				func(j *batchv1.Job) *batchv1.JobStatus { return &j.Status },
				(*batchv1.JobStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateJobStatus)),
			Generation: true,
			// As with replication controllers, the pods are kept unless the delete requests otherwise.
			DefaultPropagation: metav1.DeletePropagationOrphan,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Status", "string", "Status of the job."),
				table.Column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"]),
				table.Column("Duration", "string", "Time required to complete the job."),
				table.Age, table.Containers, table.Images,
				table.Wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(j *batchv1.Job) []any {
				names, images := table.ContainersOf(j.Spec.Template.Spec.Containers)
				return []any{
					j.Name, jobStatusCell(j), completionsCell(j), jobDurationCell(j), table.AgeOf(j.CreationTimestamp),
					names, images, metav1.FormatLabelSelector(j.Spec.Selector),
				}
			}),
		},
	}
}

func defaultJob(j *batchv1.Job) {
	defaultJobSpec(&j.Spec)
	defaults.SetPtr(&j.Spec.ManualSelector, false)
	if len(j.Labels) == 0 && len(j.Spec.Template.Labels) > 0 {
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
}

func defaultJobSpec(spec *batchv1.JobSpec) {
	if spec.Completions == nil && spec.Parallelism == nil {
		spec.Completions = ptr.To[int32](1)
	}
	defaults.SetPtr(&spec.Parallelism, 1)
	if spec.BackoffLimitPerIndex != nil {
		defaults.SetPtr(&spec.BackoffLimit, math.MaxInt32)
	}
	defaults.SetPtr(&spec.BackoffLimit, 6)
	defaults.SetPtr(&spec.CompletionMode, batchv1.NonIndexedCompletion)
	defaults.SetPtr(&spec.Suspend, false)
	if spec.PodFailurePolicy == nil {
		defaults.SetPtr(&spec.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	} else {
		defaults.SetPtr(&spec.PodReplacementPolicy, batchv1.Failed)
	}
	defaultFailurePolicy(spec.PodFailurePolicy)
	podspec.Default(&spec.Template.Spec)
}

func defaultFailurePolicy(p *batchv1.PodFailurePolicy) {
	if p == nil {
		return
	}
	for i := range p.Rules {
		conditions := p.Rules[i].OnPodConditions
		for j := range conditions {
			defaults.Set(&conditions[j].Status, corev1.ConditionTrue)
		}
	}
}

// The old labels of a job's pods, from before labels had domains.
const (
	legacyControllerUID = "controller-uid"
	legacyJobName       = "job-name"
)

// prepareJob generates the job's selector, unless spec.manualSelector is set. UID and name are set before. The labels
// without a domain are older, and clients still rely on them.
func prepareJob(j *batchv1.Job) {
	if ptr.Deref(j.Spec.ManualSelector, false) {
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
	defaults.SetPtr(&j.Spec.Selector, metav1.LabelSelector{})
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = make(map[string]string, 1)
	}
	if _, ok := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !ok {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

// warnJobSpec warns if a job is so large that its status may not be able to record all failed indexes.
func warnJobSpec(spec *batchv1.JobSpec, path *field.Path) []string {
	var w warning.List
	if ptr.Deref(spec.CompletionMode, "") == batchv1.IndexedCompletion && ptr.Deref(spec.Completions, 0) > 100_000 &&
		ptr.Deref(spec.Parallelism, 0) > 10_000 {
		w.Add(path, "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than "+
			"10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail")
	}
	return append(w, podspec.WarnTemplate(&spec.Template, path.Child("template"))...)
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
	switch parallelism := ptr.Deref(j.Spec.Parallelism, 0); {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case parallelism > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallelism)
	default:
		return fmt.Sprintf("%d/1", j.Status.Succeeded)
	}
}

func jobDurationCell(j *batchv1.Job) any {
	switch {
	case j.Status.StartTime == nil:
		return ""
	case j.Status.CompletionTime == nil:
		return api.Since(j.Status.StartTime.Time)
	default:
		return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
	}
}
