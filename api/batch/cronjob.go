package batch

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

func cronJobs() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "batch", Version: "v1", Kind: "CronJob", Plural: "cronjobs", Namespaced: true,
			ShortNames: []string{"cj"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &batchv1.CronJob{} },
			NewList: func() runtime.Object { return &batchv1.CronJobList{} },
		},
		Strategy: api.Strategy{
			Default:        api.Typed(defaultCronJob),
			Validate:       api.Check(validateCronJob),
			ValidateCreate: api.Check(validateNewCronJob),
			ValidateUpdate: api.CheckUpdate(validateCronJobUpdate),
			Warnings:       api.Warn(warnCronJob),
			Status: api.StatusOf(
				func(c *batchv1.CronJob) *batchv1.CronJobStatus { return &c.Status },
				(*batchv1.CronJobStatus).DeepCopy,
			).WithMetadata(api.AllMetadata),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Schedule", "string", batchv1.CronJobSpec{}.SwaggerDoc()["schedule"]),
				table.Column("Timezone", "string", batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"]),
				table.Column("Suspend", "boolean", batchv1.CronJobSpec{}.SwaggerDoc()["suspend"]),
				table.Column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"]),
				table.Column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
				table.Age, table.Containers, table.Images,
				table.Wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(c *batchv1.CronJob) []any {
				var last any = table.None
				zone := table.None
				if c.Status.LastScheduleTime != nil {
					last = table.AgeOf(*c.Status.LastScheduleTime)
				}
				if c.Spec.TimeZone != nil {
					zone = *c.Spec.TimeZone
				}
				names, images := table.ContainersOf(c.Spec.JobTemplate.Spec.Template.Spec.Containers)
				return []any{
					c.Name, c.Spec.Schedule, zone, table.BoolOf(c.Spec.Suspend), int64(len(c.Status.Active)), last,
					table.AgeOf(c.CreationTimestamp), names, images,
					metav1.FormatLabelSelector(c.Spec.JobTemplate.Spec.Selector),
				}
			}),
		},
	}
}

func defaultCronJob(c *batchv1.CronJob) {
	defaults.Set(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	defaults.SetPtr(&c.Spec.Suspend, false)
	defaults.SetPtr(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	defaults.SetPtr(&c.Spec.FailedJobsHistoryLimit, 1)
	// Here only the pods and the failure policy of the job template are defaulted, the rest when a job is created from
	// it.
	defaultFailurePolicy(c.Spec.JobTemplate.Spec.PodFailurePolicy)
	podspec.Default(&c.Spec.JobTemplate.Spec.Template.Spec)
}

// validateNewCronJob reserves eleven characters of a job's name for the time of its run. It also checks fields that an
// update may keep: a time zone may be removed from the database.
func validateNewCronJob(c *batchv1.CronJob) field.ErrorList {
	const longest = utilvalidation.DNS1035LabelMaxLength - 11
	errs := validateTimeZone(c.Spec.TimeZone, field.NewPath("spec", "timeZone"))
	errs = append(errs, zoneInSchedule(&c.Spec)...)
	if len(c.Name) > longest {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name,
			fmt.Sprintf("must be no more than %d characters", longest)))
	}
	return errs
}

// zoneInSchedule rejects a time zone in the schedule itself, which the parser would accept.
func zoneInSchedule(spec *batchv1.CronJobSpec) field.ErrorList {
	if !strings.Contains(spec.Schedule, "TZ") {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "schedule"), spec.Schedule,
		"cannot use TZ or CRON_TZ in schedule, use timeZone field instead")}
}

func validateCronJobUpdate(c, old *batchv1.CronJob) field.ErrorList {
	var errs field.ErrorList
	if !strings.Contains(old.Spec.Schedule, "TZ") {
		errs = zoneInSchedule(&c.Spec)
	} else if strings.Contains(c.Spec.Schedule, "TZ") && c.Spec.TimeZone != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec", "schedule"), c.Spec.Schedule,
			"cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	}
	if !ptr.Equal(c.Spec.TimeZone, old.Spec.TimeZone) {
		errs = append(errs, validateTimeZone(c.Spec.TimeZone, field.NewPath("spec", "timeZone"))...)
	}
	return errs
}

func validateCronJob(c *batchv1.CronJob) field.ErrorList {
	path, spec := field.NewPath("spec"), &c.Spec
	errs := validateSchedule(spec, path)
	errs = append(errs, validate.RequiredOneOf(path.Child("concurrencyPolicy"), spec.ConcurrencyPolicy,
		batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("startingDeadlineSeconds"), spec.StartingDeadlineSeconds)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("successfulJobsHistoryLimit"),
		spec.SuccessfulJobsHistoryLimit)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("failedJobsHistoryLimit"), spec.FailedJobsHistoryLimit)...)
	job := path.Child("jobTemplate", "spec")
	if s := spec.JobTemplate.Spec.Selector; s != nil {
		errs = append(errs, field.Invalid(job.Child("selector"), s, "`selector` will be auto-generated"))
	}
	if manual := spec.JobTemplate.Spec.ManualSelector; ptr.Deref(manual, false) {
		errs = append(errs, field.NotSupported(job.Child("manualSelector"), "true", []string{"nil", "false"}))
	}
	return append(errs, validateJobSpec(&spec.JobTemplate.Spec, job)...)
}

func validateSchedule(spec *batchv1.CronJobSpec, path *field.Path) field.ErrorList {
	schedulePath := path.Child("schedule")
	if spec.Schedule == "" {
		return field.ErrorList{field.Required(schedulePath, "")}
	}
	if _, err := limits.ParseSchedule(spec.Schedule); err != nil {
		return field.ErrorList{field.Invalid(schedulePath, spec.Schedule, err.Error())}
	}
	return nil
}

// zonePart is one part of a time zone's name: https://data.iana.org/time-zones/theory.html.
var zonePart = regexp.MustCompile(`^[A-Za-z.\-_0-9+]{1,14}$`)

func validateTimeZone(name *string, path *field.Path) field.ErrorList {
	if name == nil {
		return nil
	}
	if *name == "" {
		return field.ErrorList{field.Invalid(path, *name, "timeZone must be nil or non-empty string")}
	}
	for part := range strings.SplitSeq(*name, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(path, *name, "unknown time zone "+*name)}
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(*name, "Local") {
		errs = append(errs, field.Invalid(path, *name, "timeZone must be an explicit time zone as defined in "+
			"https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(*name); err != nil {
		errs = append(errs, field.Invalid(path, *name, err.Error()))
	}
	return errs
}

func warnCronJob(c, old *batchv1.CronJob) []string {
	if old != nil && old.Generation == c.Generation {
		return nil
	}
	list := append(podspec.WarnWorkloadName(c, old),
		warnJobSpec(&c.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))...)
	if strings.Contains(c.Spec.Schedule, "TZ") {
		list = append(list, fmt.Sprintf("spec.schedule: CRON_TZ or TZ used in %q is not officially supported, see "+
			"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", c.Spec.Schedule))
	}
	return list
}
