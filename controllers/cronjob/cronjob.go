// Package cronjob creates Jobs at the times in a CronJob's schedule.
//
// Its input is a CronJob and its Jobs. It creates, replaces and deletes Jobs, lists the active ones in the
// status, and records Events. schedule.go computes the times; history.go deletes finished Jobs; next.go serves
// the time of the next run.
//
// A Job's name is derived from its scheduled time. So no time is run twice, even if a controller is stopped
// after creating the Job and before recording it.
package cronjob

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	_ "time/tzdata" // images from scratch have no time zones of their own

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Kind is the kind in the Jobs' owner references.
var Kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

type cronJobs struct {
	*controller.Controller
	*controller.OwnerExpectations
	client   func() kubernetes.Interface
	lister   batchlisters.CronJobLister
	informer cache.SharedIndexInformer
	jobs     cache.SharedIndexInformer
	recorder record.EventRecorder
	clock    clock.PassiveClock
	skew     func() *prometheus.HistogramVec
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	batch := env.Informers.Batch().V1()
	if err := controller.IndexByController(batch.Jobs().Informer()); err != nil {
		return nil, err
	}
	c := &cronJobs{
		client: env.Client, lister: batch.CronJobs().Lister(), informer: batch.CronJobs().Informer(),
		jobs:     batch.Jobs().Informer(),
		recorder: env.Recorder("cronjob-controller"), clock: env.Clock,
		OwnerExpectations: controller.NewOwnerExpectations(env.Clock, controller.MaxFailureDelay),
		skew: env.Metrics.Histogram("cronjob_controller_job_creation_skew_duration_seconds",
			"Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
			prometheus.ExponentialBuckets(1, 2, 10)),
	}
	c.Controller = controller.New(env, "cronjob", c.reconcile)
	c.Debug = c
	wake := func(cj *batchv1.CronJob) { c.EnqueueObject(cj) }
	controller.Watch(c.Controller, c.informer, controller.Handler[*batchv1.CronJob]{
		Add: wake, Update: func(_, cj *batchv1.CronJob) { wake(cj) }, Delete: wake,
	})
	owners := &controller.Dependents{Controller: c.Controller, Kind: Kind}
	changed := func(j *batchv1.Job) { owners.Changed(j) }
	controller.Watch(c.Controller, c.jobs, controller.Handler[*batchv1.Job]{
		Add: changed, Delete: changed,
		Update: func(old, j *batchv1.Job) {
			owners.Moved(old, j)
			changed(j)
		},
	})
	return c.Controller, nil
}

// sync is the state of one reconciliation. The CronJob in it is a copy, and its status is written at the end.
type sync struct {
	*cronJobs
	key      string
	cj       *batchv1.CronJob
	children []*batchv1.Job
	now      time.Time
}

func (c *cronJobs) reconcile(ctx context.Context, key string) error {
	cached, ok := controller.SatisfiedOwner[*batchv1.CronJob](c.Controller, c.OwnerExpectations, c.informer, key)
	if !ok {
		return nil
	}
	s := &sync{cronJobs: c, key: key, cj: cached.DeepCopy(), now: c.clock.Now()}
	var err error
	if s.children, err = c.childrenOf(cached); err != nil {
		return err
	}
	if err := s.cleanUp(ctx); err != nil {
		return err
	}
	if err := s.syncActive(ctx); err != nil {
		return err
	}
	runErr := s.runDue(ctx)
	return controller.FirstError(s.writeStatus(ctx, cached), runErr)
}

func (c *cronJobs) childrenOf(cj *batchv1.CronJob) ([]*batchv1.Job, error) {
	all, err := controller.OwnedOrOrphaned[*batchv1.Job](c.jobs, cj)
	return slices.DeleteFunc(all, func(j *batchv1.Job) bool { return !metav1.IsControlledBy(j, cj) }), err
}

// end returns the condition, Complete or Failed, of a finished Job; "" for an unfinished one.
func end(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// syncActive updates the list of active Jobs in the status.
func (s *sync) syncActive(ctx context.Context) error {
	present := map[string]bool{}
	for _, j := range s.children {
		present[string(j.UID)] = true
		listed, over := s.isActive(j), end(j)
		switch {
		case listed && over != "":
			s.drop(j.Name)
			s.recorder.Eventf(s.cj, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v",
				j.Name, over)
		case !listed && over == "" && j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "":
			// The controller created it, and was stopped before it recorded that.
			s.add(j)
		case !listed && over == "":
			s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "UnexpectedJob",
				"Saw a job that the controller did not create or forgot: %s", j.Name)
		}
		if over == batchv1.JobComplete && j.Status.CompletionTime != nil {
			if last := s.cj.Status.LastSuccessfulTime; last == nil || last.Before(j.Status.CompletionTime) {
				s.cj.Status.LastSuccessfulTime = j.Status.CompletionTime
			}
		}
	}
	for _, ref := range slices.Clone(s.cj.Status.Active) {
		if present[string(ref.UID)] {
			continue
		}
		j, err := s.client().BatchV1().Jobs(s.cj.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && j.UID != ref.UID:
			s.recorder.Eventf(s.cj, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			s.drop(ref.Name)
		case err != nil:
			return err
		}
	}
	return nil
}

func (s *sync) isActive(j *batchv1.Job) bool {
	return slices.ContainsFunc(s.cj.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
}

func (s *sync) drop(name string) {
	s.cj.Status.Active = slices.DeleteFunc(s.cj.Status.Active, func(r corev1.ObjectReference) bool {
		return r.Name == name
	})
}

func (s *sync) add(j *batchv1.Job) {
	s.cj.Status.Active = append(s.cj.Status.Active, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job",
		Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion,
	})
}

// runDue starts the run that is due, if there is one, and enqueues the CronJob for the next.
func (s *sync) runDue(ctx context.Context) error {
	if s.cj.DeletionTimestamp != nil {
		return nil
	}
	times, ok := s.schedule()
	if !ok || suspended(s.cj) {
		return nil // a change of the CronJob will enqueue it
	}
	// The next time is zero for a schedule without one, such as the 31st of February.
	if next := times.Next(s.now); !next.IsZero() {
		s.EnqueueAt(s.key, next)
	}
	due := s.due(times)
	if due.IsZero() {
		return nil
	}
	if d := s.cj.Spec.StartingDeadlineSeconds; d != nil && due.Add(controller.Seconds(*d)).Before(s.now) {
		s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s",
			due.UTC().Format(time.RFC1123Z))
		return nil
	}
	if last := s.cj.Status.LastScheduleTime; last != nil && !last.Time.Before(due) {
		return nil
	}
	switch {
	case s.cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(s.cj.Status.Active) > 0:
		s.recorder.Event(s.cj, corev1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
		return nil
	case s.cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		if err := s.deleteActive(ctx); err != nil {
			return err
		}
	}
	return s.run(ctx, due)
}

func suspended(cj *batchv1.CronJob) bool { return cj.Spec.Suspend != nil && *cj.Spec.Suspend }

func (s *sync) deleteActive(ctx context.Context) error {
	for _, ref := range slices.Clone(s.cj.Status.Active) {
		if err := s.deleteJob(ctx, ref.Name, string(ref.UID)); err != nil {
			return err
		}
	}
	return nil
}

func (s *sync) deleteJob(ctx context.Context, name, uid string) error {
	o := metav1.NewPreconditionDeleteOptions(uid)
	o.PropagationPolicy = new(metav1.DeletePropagationBackground)
	err := s.client().BatchV1().Jobs(s.cj.Namespace).Delete(ctx, name, *o)
	switch {
	case err == nil:
		s.recorder.Eventf(s.cj, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return err
	}
	s.drop(name)
	return nil
}

// run creates the Job for a scheduled time. A Job of this name that exists and belongs to the CronJob counts as
// created.
func (s *sync) run(ctx context.Context, due time.Time) error {
	job := s.newJob(due)
	client := s.client().BatchV1().Jobs(s.cj.Namespace)
	j, err := client.Create(ctx, job, metav1.CreateOptions{})
	switch {
	case err == nil:
		s.recorder.Eventf(s.cj, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", j.Name)
		s.skew().WithLabelValues().Observe(j.CreationTimestamp.Sub(due).Seconds())
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		if j, err = client.Get(ctx, job.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !metav1.IsControlledBy(j, s.cj) {
			err = fmt.Errorf("job %s belongs to another", j.Name)
			s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
			return err
		}
	default:
		s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return err
	}
	s.Versions.Expect(s.key, s.jobs, j.ResourceVersion)
	if end(j) == "" && !s.isActive(j) {
		s.add(j)
	}
	s.cj.Status.LastScheduleTime = new(metav1.NewTime(due))
	return nil
}

func (s *sync) newJob(due time.Time) *batchv1.Job {
	annotations := maps.Clone(s.cj.Spec.JobTemplate.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:            jobName(s.cj, due),
			Namespace:       s.cj.Namespace,
			Labels:          maps.Clone(s.cj.Spec.JobTemplate.Labels),
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.cj, Kind)},
		},
		Spec: *s.cj.Spec.JobTemplate.Spec.DeepCopy(),
	}
}

// jobName returns the name of the Job for a scheduled time: it ends with the time in minutes since 1970.
func jobName(cj *batchv1.CronJob, due time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, due.Unix()/60)
}

func (s *sync) writeStatus(ctx context.Context, cached *batchv1.CronJob) error {
	if equality.Semantic.DeepEqual(cached.Status, s.cj.Status) {
		return nil
	}
	updated, err := s.client().BatchV1().CronJobs(s.cj.Namespace).UpdateStatus(ctx, s.cj, metav1.UpdateOptions{})
	return s.ExpectUpdate(s.informer, updated, err)
}
