package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func cronJobs() *Resource {
	return &Resource{
		Group: "batch", Version: "v1", Kind: "CronJob", Plural: "cronjobs", Namespaced: true,
		ShortNames: []string{"cj"},
		Categories: []string{"all"},
		New:        func() Object { return &batchv1.CronJob{} },
		NewList:    func() runtime.Object { return &batchv1.CronJobList{} },

		Default:      with(defaultCronJob),
		ValidateName: cronJobName,
		Validate:     checked(validateCronJob),
		Warnings:     warned(warnCronJob),
		Status: statusOf(
			func(c *batchv1.CronJob) *batchv1.CronJobStatus { return &c.Status },
			(*batchv1.CronJobStatus).DeepCopy,
		),
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
	// A template's job is completed when it is made: only its pods are filled here.
	defaultPodSpec(&c.Spec.JobTemplate.Spec.Template.Spec)
}

// cronJobName leaves eleven characters of a job's name for the time of its run.
func cronJobName(name string, prefix bool) []string {
	const longest = utilvalidation.DNS1035LabelMaxLength - 11
	complaints := validation.NameIsDNSSubdomain(name, prefix)
	if len(name) > longest {
		complaints = append(complaints, fmt.Sprintf("must be no more than %d characters", longest))
	}
	return complaints
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
	var errs field.ErrorList
	if _, err := parseSchedule(spec.Schedule); err != nil {
		errs = append(errs, field.Invalid(at, spec.Schedule, err.Error()))
	}
	if strings.Contains(spec.Schedule, "TZ") {
		errs = append(errs, field.Invalid(at, spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	}
	if spec.TimeZone == nil {
		return errs
	}
	zone := *spec.TimeZone
	at = path.Child("timeZone")
	if zone == "" {
		return append(errs, field.Invalid(at, spec.TimeZone, "timeZone must be nil or non-empty string"))
	}
	if strings.EqualFold(zone, "Local") {
		errs = append(errs, field.Invalid(at, spec.TimeZone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(zone); err != nil {
		errs = append(errs, field.Invalid(at, spec.TimeZone, err.Error()))
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

func warnCronJob(c *batchv1.CronJob) []string {
	if complaints := utilvalidation.IsDNS1123Label(c.Name); c.Name != "" && len(complaints) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", complaints)}
	}
	return nil
}
