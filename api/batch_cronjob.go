package api

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
)

func cronJobs() *Resource {
	return &Resource{
		Group: "batch", Version: "v1", Kind: "CronJob", Plural: "cronjobs", Namespaced: true,
		ShortNames: []string{"cj"},
		Categories: []string{"all"},
		New:        func() Object { return &batchv1.CronJob{} },
		NewList:    func() runtime.Object { return &batchv1.CronJobList{} },

		Default:        with(defaultCronJob),
		Validate:       checked(validateCronJob),
		ValidateCreate: checked(validateNewCronJob),
		ValidateUpdate: checked2(validateCronJobUpdate),
		Warnings:       warned2(warnCronJob),
		Status: statusOf(
			func(c *batchv1.CronJob) *batchv1.CronJobStatus { return &c.Status },
			(*batchv1.CronJobStatus).DeepCopy,
		).withMetadata(AllMetadata),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Schedule", "string", batchv1.CronJobSpec{}.SwaggerDoc()["schedule"]),
			column("Timezone", "string", batchv1.CronJobSpec{}.SwaggerDoc()["timeZone"]),
			column("Suspend", "boolean", batchv1.CronJobSpec{}.SwaggerDoc()["suspend"]),
			column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"]),
			column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"]),
			ageColumn, containersColumn, imagesColumn,
			wide("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(c *batchv1.CronJob) []any {
			last, zone := none, none
			if c.Status.LastScheduleTime != nil {
				last = age(*c.Status.LastScheduleTime)
			}
			if c.Spec.TimeZone != nil {
				zone = *c.Spec.TimeZone
			}
			names, images := containerCells(c.Spec.JobTemplate.Spec.Template.Spec.Containers)
			return []any{
				c.Name, c.Spec.Schedule, zone, boolCell(c.Spec.Suspend), int64(len(c.Status.Active)), last,
				age(c.CreationTimestamp), names, images, selectorCell(c.Spec.JobTemplate.Spec.Selector),
			}
		}),
	}
}

func defaultCronJob(c *batchv1.CronJob) {
	setDefault(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	setDefaultPtr(&c.Spec.Suspend, false)
	setDefaultPtr(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	setDefaultPtr(&c.Spec.FailedJobsHistoryLimit, 1)
	// A template's job is completed when it is made: only its pods and its policy are filled here.
	defaultFailurePolicy(c.Spec.JobTemplate.Spec.PodFailurePolicy)
	defaultPodSpec(&c.Spec.JobTemplate.Spec.Template.Spec)
}

// validateNewCronJob leaves eleven characters of a job's name for the time of its run, and wants
// what updates may keep: time zones are known today and gone from the database tomorrow.
func validateNewCronJob(c *batchv1.CronJob) field.ErrorList {
	const longest = utilvalidation.DNS1035LabelMaxLength - 11
	errs := validateTimeZone(c.Spec.TimeZone, field.NewPath("spec", "timeZone"))
	errs = append(errs, zoneInSchedule(&c.Spec)...)
	if len(c.Name) > longest {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name, fmt.Sprintf("must be no more than %d characters", longest)))
	}
	return errs
}

// zoneInSchedule refuses the other way of naming a time zone, which the parser understands.
func zoneInSchedule(spec *batchv1.CronJobSpec) field.ErrorList {
	if !strings.Contains(spec.Schedule, "TZ") {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "schedule"), spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")}
}

func validateCronJobUpdate(c, old *batchv1.CronJob) field.ErrorList {
	var errs field.ErrorList
	if !strings.Contains(old.Spec.Schedule, "TZ") {
		errs = zoneInSchedule(&c.Spec)
	} else if strings.Contains(c.Spec.Schedule, "TZ") && c.Spec.TimeZone != nil {
		errs = append(errs, field.Invalid(field.NewPath("spec", "schedule"), c.Spec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	}
	if !ptr.Equal(c.Spec.TimeZone, old.Spec.TimeZone) {
		errs = append(errs, validateTimeZone(c.Spec.TimeZone, field.NewPath("spec", "timeZone"))...)
	}
	return errs
}

func validateCronJob(c *batchv1.CronJob) field.ErrorList {
	path, spec := field.NewPath("spec"), &c.Spec
	errs := validateSchedule(spec, path)
	errs = append(errs, requiredOneOf(path.Child("concurrencyPolicy"), spec.ConcurrencyPolicy,
		batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)...)
	errs = append(errs, nonNegativePtr(path.Child("startingDeadlineSeconds"), spec.StartingDeadlineSeconds)...)
	errs = append(errs, nonNegativePtr(path.Child("successfulJobsHistoryLimit"), spec.SuccessfulJobsHistoryLimit)...)
	errs = append(errs, nonNegativePtr(path.Child("failedJobsHistoryLimit"), spec.FailedJobsHistoryLimit)...)
	job := path.Child("jobTemplate", "spec")
	if s := spec.JobTemplate.Spec.Selector; s != nil {
		errs = append(errs, field.Invalid(job.Child("selector"), s, "`selector` will be auto-generated"))
	}
	if manual := spec.JobTemplate.Spec.ManualSelector; isTrue(manual) {
		errs = append(errs, field.NotSupported(job.Child("manualSelector"), "true", []string{"nil", "false"}))
	}
	return append(errs, validateJobSpec(&spec.JobTemplate.Spec, job)...)
}

func validateSchedule(spec *batchv1.CronJobSpec, path *field.Path) field.ErrorList {
	at := path.Child("schedule")
	if spec.Schedule == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if _, err := parseSchedule(spec.Schedule); err != nil {
		return field.ErrorList{field.Invalid(at, spec.Schedule, err.Error())}
	}
	return nil
}

// zonePart is one part of a time zone's name, as https://data.iana.org/time-zones/theory.html has it.
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
		errs = append(errs, field.Invalid(path, *name, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(*name); err != nil {
		errs = append(errs, field.Invalid(path, *name, err.Error()))
	}
	return errs
}

// parseSchedule turns the panic of the cron parser at a bare "TZ=…" into an error.
func parseSchedule(text string) (schedule cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	return cron.ParseStandard(text)
}

func warnCronJob(c, old *batchv1.CronJob) []string {
	if old != nil && old.Generation == c.Generation {
		return nil
	}
	list := append(warnWorkloadName(c, old), warnJobSpec(&c.Spec.JobTemplate.Spec, field.NewPath("spec", "jobTemplate", "spec"))...)
	if strings.Contains(c.Spec.Schedule, "TZ") {
		list = append(list, fmt.Sprintf("spec.schedule: CRON_TZ or TZ used in %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", c.Spec.Schedule))
	}
	return list
}
