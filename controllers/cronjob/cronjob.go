// Package cronjob makes Jobs at the times that a CronJob names.
//
// In comes a CronJob and the Jobs it has made; out go Jobs made, replaced and cleaned up, the list
// of those that are active, and events. schedule.go says when; history.go which finished Jobs go;
// next.go tells who asks when the next run is.
//
// A Job's name is made from the time it stands for, so that no time is ever run twice, even by a
// controller that was stopped after making the Job and before it could note so.
package cronjob

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	_ "time/tzdata" // images from scratch have no time zones of their own

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// Kind is what the Jobs' owner references name.
var Kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

type cronJobs struct {
	*controller.Controller
	client   kubernetes.Interface
	lister   batchlisters.CronJobLister
	informer cache.SharedIndexInformer
	jobs     cache.SharedIndexInformer
	recorder record.EventRecorder
	clock    clock.PassiveClock
	written  controller.Written
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	batch := env.Informers.Batch().V1()
	if err := controller.IndexByController(batch.Jobs().Informer()); err != nil {
		return nil, err
	}
	c := &cronJobs{
		client: env.Client, lister: batch.CronJobs().Lister(), informer: batch.CronJobs().Informer(), jobs: batch.Jobs().Informer(),
		recorder: env.Recorder("cronjob-controller"), clock: env.Clock,
	}
	c.Controller = controller.New(env, "cronjob", c.reconcile)
	c.Debug = c
	wake := func(cj *batchv1.CronJob) { c.EnqueueObject(cj) }
	controller.Watch(c.Controller, c.informer, controller.Handler[*batchv1.CronJob]{
		Add: wake, Update: func(_, cj *batchv1.CronJob) { wake(cj) }, Delete: wake,
	})
	controller.Watch(c.Controller, c.jobs, controller.Handler[*batchv1.Job]{
		Add: c.jobChanged, Delete: c.jobChanged,
		Update: func(old, j *batchv1.Job) {
			c.jobChanged(j)
			if !metav1.IsControlledBy(j, &metav1.ObjectMeta{UID: ownerUID(old)}) {
				c.jobChanged(old)
			}
		},
	})
	return c.Controller, nil
}

func ownerUID(j *batchv1.Job) types.UID {
	if ref := metav1.GetControllerOfNoCopy(j); ref != nil {
		return ref.UID
	}
	return ""
}

func (c *cronJobs) jobChanged(j *batchv1.Job) {
	if ref := metav1.GetControllerOfNoCopy(j); ref != nil && ref.Kind == Kind.Kind && ref.APIVersion == Kind.GroupVersion().String() {
		c.Enqueue(cache.ObjectName{Namespace: j.Namespace, Name: ref.Name}.String())
	}
}

// look is one look at a CronJob, a copy whose status becomes what it will be.
type look struct {
	*cronJobs
	key      string
	cj       *batchv1.CronJob
	children []*batchv1.Job
	now      time.Time
}

func (c *cronJobs) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	if !c.written.Shown(key) {
		return nil // the event that we wait for brings us back
	}
	cached, err := c.lister.CronJobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.written.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	l := &look{cronJobs: c, key: key, cj: cached.DeepCopy(), now: c.clock.Now()}
	if l.children, err = c.childrenOf(cached); err != nil {
		return err
	}
	if err := l.cleanUp(ctx); err != nil {
		return err
	}
	if err := l.syncActive(ctx); err != nil {
		return err
	}
	runErr := l.runDue(ctx)
	return controller.FirstError(l.writeStatus(ctx, cached), runErr)
}

func (c *cronJobs) childrenOf(cj *batchv1.CronJob) ([]*batchv1.Job, error) {
	all, err := controller.OwnedOrOrphaned[*batchv1.Job](c.jobs, cj)
	return slices.DeleteFunc(all, func(j *batchv1.Job) bool { return !metav1.IsControlledBy(j, cj) }), err
}

// end is the condition, Complete or Failed, of a Job that is over, and "" for one that is not.
func end(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// syncActive brings the list of active Jobs up to date.
func (l *look) syncActive(ctx context.Context) error {
	present := map[string]bool{}
	for _, j := range l.children {
		present[string(j.UID)] = true
		listed, over := l.isActive(j), end(j)
		switch {
		case listed && over != "":
			l.drop(j.Name)
			l.recorder.Eventf(l.cj, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, over)
		case !listed && over == "" && j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] != "":
			// We made it, and were stopped before we could note so.
			l.add(j)
		case !listed && over == "":
			l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
		}
		if over == batchv1.JobComplete && j.Status.CompletionTime != nil {
			if last := l.cj.Status.LastSuccessfulTime; last == nil || last.Before(j.Status.CompletionTime) {
				l.cj.Status.LastSuccessfulTime = j.Status.CompletionTime
			}
		}
	}
	for _, ref := range slices.Clone(l.cj.Status.Active) {
		if present[string(ref.UID)] {
			continue
		}
		j, err := l.client.BatchV1().Jobs(l.cj.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && j.UID != ref.UID:
			l.recorder.Eventf(l.cj, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
			l.drop(ref.Name)
		case err != nil:
			return err
		}
	}
	return nil
}

func (l *look) isActive(j *batchv1.Job) bool {
	return slices.ContainsFunc(l.cj.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
}

func (l *look) drop(name string) {
	l.cj.Status.Active = slices.DeleteFunc(l.cj.Status.Active, func(r corev1.ObjectReference) bool { return r.Name == name })
}

func (l *look) add(j *batchv1.Job) {
	l.cj.Status.Active = append(l.cj.Status.Active, corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job",
		Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion,
	})
}

// runDue starts the run that is due, if one is, and comes back for the next.
func (l *look) runDue(ctx context.Context) error {
	if l.cj.DeletionTimestamp != nil {
		return nil
	}
	s, ok := l.schedule()
	if !ok || suspended(l.cj) {
		return nil // only a change of the CronJob can mend or resume it
	}
	if next := s.Next(l.now); !next.IsZero() { // the 31st of February never comes
		l.EnqueueAfter(l.key, max(0, next.Sub(l.now))+margin)
	}
	due := l.due(s)
	if due.IsZero() {
		return nil
	}
	if d := l.cj.Spec.StartingDeadlineSeconds; d != nil && due.Add(controller.Seconds(*d)).Before(l.now) {
		l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", due.UTC().Format(time.RFC1123Z))
		return nil
	}
	if last := l.cj.Status.LastScheduleTime; last != nil && !last.Time.Before(due) {
		return nil
	}
	switch {
	case l.cj.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(l.cj.Status.Active) > 0:
		l.recorder.Event(l.cj, corev1.EventTypeNormal, "JobAlreadyActive",
			"Not starting job because prior execution is running and concurrency policy is Forbid")
		return nil
	case l.cj.Spec.ConcurrencyPolicy == batchv1.ReplaceConcurrent:
		if err := l.deleteActive(ctx); err != nil {
			return err
		}
	}
	return l.run(ctx, due)
}

func suspended(cj *batchv1.CronJob) bool { return cj.Spec.Suspend != nil && *cj.Spec.Suspend }

func (l *look) deleteActive(ctx context.Context) error {
	for _, ref := range slices.Clone(l.cj.Status.Active) {
		if err := l.deleteJob(ctx, ref.Name, string(ref.UID)); err != nil {
			return err
		}
	}
	return nil
}

func (l *look) deleteJob(ctx context.Context, name, uid string) error {
	o := metav1.NewPreconditionDeleteOptions(uid)
	o.PropagationPolicy = new(metav1.DeletePropagationBackground)
	err := l.client.BatchV1().Jobs(l.cj.Namespace).Delete(ctx, name, *o)
	switch {
	case err == nil:
		l.recorder.Eventf(l.cj, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", name)
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return err
	}
	l.drop(name)
	return nil
}

// run makes the Job for a time.
func (l *look) run(ctx context.Context, due time.Time) error {
	wanted := l.newJob(due)
	client := l.client.BatchV1().Jobs(l.cj.Namespace)
	j, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	switch {
	case err == nil:
		l.recorder.Eventf(l.cj, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", j.Name)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		if j, err = client.Get(ctx, wanted.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !metav1.IsControlledBy(j, l.cj) {
			err = fmt.Errorf("job %s belongs to another", j.Name)
			l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
			return err
		}
	default:
		l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return err
	}
	l.written.Note(l.key, l.jobs, j.ResourceVersion)
	if end(j) == "" && !l.isActive(j) {
		l.add(j)
	}
	l.cj.Status.LastScheduleTime = new(metav1.NewTime(due))
	return nil
}

func (l *look) newJob(due time.Time) *batchv1.Job {
	annotations := maps.Clone(l.cj.Spec.JobTemplate.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[batchv1.CronJobScheduledTimestampAnnotation] = due.Format(time.RFC3339)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name:            jobName(l.cj, due),
			Namespace:       l.cj.Namespace,
			Labels:          maps.Clone(l.cj.Spec.JobTemplate.Labels),
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.cj, Kind)},
		},
		Spec: *l.cj.Spec.JobTemplate.Spec.DeepCopy(),
	}
}

// jobName is the name of the one Job for a time, in minutes since 1970.
func jobName(cj *batchv1.CronJob, due time.Time) string {
	return fmt.Sprintf("%s-%d", cj.Name, due.Unix()/60)
}

func (l *look) writeStatus(ctx context.Context, cached *batchv1.CronJob) error {
	if equality.Semantic.DeepEqual(cached.Status, l.cj.Status) {
		return nil
	}
	updated, err := l.client.BatchV1().CronJobs(l.cj.Namespace).UpdateStatus(ctx, l.cj, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l.written.Note(l.key, l.informer, updated.ResourceVersion)
	return nil
}
