// Package job runs pods until as many have succeeded as a Job requires.
//
// Its input is a Job and its pods. Its output is pods, the status, and Events. Each sync of a Job takes the
// same steps, and the files follow them:
//
//	job.go      the controller's watches, and one sync from beginning to end
//	pods.go     classifying pods: failed, succeeded, ignored; the pod failure policy
//	indexes.go  Indexed Jobs: which indexes have succeeded or failed
//	verdict.go  whether the Job is over, and why: back-off limits, deadline, success policy, suspension
//	scale.go    pods to create and to delete, and the delay after failures
//	track.go    counting each pod exactly once, by finalizer; writing the status
//	orphan.go   pods that keep a finalizer for a Job that no longer counts them
//	metrics.go  kube-controller-manager's metrics of Jobs
package job

import (
	"context"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Kind is the kind in the pods' owner references.
var Kind = batchv1.SchemeGroupVersion.WithKind("Job")

// managedByUs is the value of spec.managedBy that, like an unset field, assigns a Job to this controller.
const managedByUs = "kubernetes.io/job-controller"

// batchPeriod batches the changes of many pods into one sync, because each sync may write the status twice.
const batchPeriod = 100 * time.Millisecond

type jobs struct {
	*controller.Controller
	// OwnerExpectations delays a sync until the cache has the writes of the last one: pods, removed finalizers
	// and the status by version, deletions by uid.
	*controller.OwnerExpectations
	client   func() kubernetes.Interface
	jobs     batchlisters.JobLister
	informer cache.SharedIndexInformer
	podList  corelisters.PodLister
	pods     cache.SharedIndexInformer
	recorder record.EventRecorder
	clock    clock.PassiveClock
	metrics  *metrics

	dependents *controller.Dependents
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	batch, core := env.Informers.Batch().V1().Jobs(), env.Informers.Core().V1().Pods()
	if err := controller.IndexByController(core.Informer()); err != nil {
		return nil, err
	}
	c := &jobs{
		client: env.Client, jobs: batch.Lister(), informer: batch.Informer(), podList: core.Lister(),
		pods:     core.Informer(),
		recorder: env.Recorder("job-controller"), clock: env.Clock, metrics: newMetrics(env.Metrics),
		OwnerExpectations: controller.NewOwnerExpectations(env.Clock, controller.MaxFailureDelay),
	}
	c.Controller = controller.New(env, "job", c.reconcile)
	c.dependents = &controller.Dependents{Controller: c.Controller, Kind: Kind, Expected: c.Expected,
		Adopters: controller.Adopters(c.Controller,
			func(namespace string) ([]*batchv1.Job, error) {
				return c.jobs.Jobs(namespace).List(labels.Everything())
			},
			func(j *batchv1.Job) *metav1.LabelSelector { return j.Spec.Selector })}
	controller.Watch(c.Controller, batch.Informer(), controller.Handler[*batchv1.Job]{
		Add:    c.jobAdded,
		Update: func(_, j *batchv1.Job) { c.jobUpdated(j) },
		Delete: c.jobDeleted,
	})
	controller.Watch(c.Controller, core.Informer(), controller.Handler[*corev1.Pod]{
		Add: c.podAdded, Update: c.podUpdated, Delete: c.podDeleted,
	})
	return c.Controller, nil
}

func (c *jobs) jobAdded(j *batchv1.Job) {
	c.EnqueueObject(j)
	if managedElsewhere(j) {
		c.metrics.external.Of(*j.Spec.ManagedBy).Inc()
	}
}

func (c *jobs) jobUpdated(j *batchv1.Job) {
	c.EnqueueObject(j)
	if finished(j) {
		c.enqueueLeftovers(j)
	}
}

func (c *jobs) jobDeleted(j *batchv1.Job) {
	c.EnqueueObject(j)
	c.enqueueLeftovers(j)
}

func (c *jobs) podAdded(pod *corev1.Pod) {
	c.metrics.podChanged(nil, pod)
	if pod.DeletionTimestamp != nil {
		c.podEnding(pod)
		return
	}
	c.dependents.Changed(pod)
	c.enqueueOrphan(pod)
}

func (c *jobs) podUpdated(old, pod *corev1.Pod) {
	c.metrics.podChanged(old, pod)
	c.enqueueOrphan(pod)
	if pod.DeletionTimestamp != nil {
		c.podEnding(pod)
		return
	}
	c.dependents.Moved(old, pod)
	if key, ok := c.dependents.OwnerKey(pod); ok {
		c.EnqueueBatched(key, batchPeriod)
		return
	}
	c.dependents.Orphan(pod)
}

func (c *jobs) podDeleted(pod *corev1.Pod) {
	c.metrics.podChanged(pod, nil)
	c.podEnding(pod)
}

func (c *jobs) podEnding(pod *corev1.Pod) {
	c.enqueueOrphan(pod)
	c.dependents.Gone(pod)
}

// sync is the state of one reconciliation of a Job. One goroutine uses it, except that requests for several
// pods run in parallel. Each of these writes only its own element of a slice.
type sync struct {
	*jobs
	key  string
	job  *batchv1.Job       // a copy, changed by the sync
	was  *batchv1.JobStatus // as it is stored
	pods []*corev1.Pod
	now  time.Time

	active      []*corev1.Pod
	terminating int32
	ended       []*corev1.Pod // with our finalizer, and neither counted nor listed in the status yet
	succeeded   int32
	failed      int32
	done        intervals             // of an Indexed Job: the indexes that have succeeded
	lost        intervals             // of an Indexed Job: the indexes that have failed for good
	latest      map[int]*corev1.Pod   // the failed pod with the highest failure count, by index
	verdict     *batchv1.JobCondition // nil while the Job is not over
	action      string                // of scale, for the metrics
}

func (c *jobs) reconcile(ctx context.Context, key string) error {
	if orphan, ok := strings.CutPrefix(key, orphanPrefix); ok {
		return c.release(ctx, orphan)
	}
	job, ok := controller.SatisfiedOwner[*batchv1.Job](c.Controller, c.OwnerExpectations, c.informer, key)
	if !ok {
		return nil
	}
	if finished(job) || managedElsewhere(job) {
		c.Failures.Forget(key)
		return nil
	}
	s := &sync{jobs: c, key: key, job: job.DeepCopy(), was: job.Status.DeepCopy(), now: c.clock.Now(),
		action: "reconciling"}
	err := s.claimAndRun(ctx)
	c.metrics.synced(job, s.action, c.clock.Since(s.now), err)
	return err
}

func (s *sync) claimAndRun(ctx context.Context) (err error) {
	if s.pods, err = s.claim(ctx, s.job); err != nil {
		return err
	}
	return s.run(ctx)
}

// ignoreNotFound drops NotFound: an object that was deleted meanwhile needs no further write.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func managedElsewhere(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != managedByUs
}

func (c *jobs) claim(ctx context.Context, job *batchv1.Job) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return nil, err
	}
	all, err := controller.OwnedOrOrphaned[*corev1.Pod](c.pods, job)
	if err != nil {
		return nil, err
	}
	patched := map[types.UID]*corev1.Pod{}
	mine, err := controller.Claim(ctx, controller.Claimer{
		Owner: job, Kind: Kind, Selector: selector, Finalizers: []string{batchv1.JobTrackingFinalizer},
		Live: func(ctx context.Context) (metav1.Object, error) {
			return c.client().BatchV1().Jobs(job.Namespace).Get(ctx, job.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, pod metav1.Object, patch []byte) error {
			after, err := c.client().CoreV1().Pods(job.Namespace).Patch(ctx, pod.GetName(),
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				patched[after.UID] = after
			}
			return err
		},
	}, all)
	// The cache may not show yet that an adopted pod has our finalizer, which decides whether it is counted and
	// released. So the answers to the patches replace the cached pods.
	for i, pod := range mine {
		if adopted := patched[pod.UID]; adopted != nil {
			mine[i] = adopted
		}
	}
	return mine, err
}

// run judges, scales and counts, in this order: a Job that is over creates no pod, and the pods that are
// counted are the ones that were judged.
func (s *sync) run(ctx context.Context) error {
	s.start()
	s.count()
	s.judge()
	scaleErr := s.scale(ctx)
	if s.verdict == nil {
		s.judgeCompletion()
		s.suspension()
	}
	if err := s.track(ctx); err != nil {
		return err
	}
	return controller.FirstError(scaleErr, s.prune(ctx))
}

// prune deletes the oldest failed pods of a Job whose backoffLimit is large. It spares pods with our finalizer:
// they are not counted yet, or their index needs their failure count.
func (s *sync) prune(ctx context.Context) error {
	return controller.PruneFailed(ctx, s.client(), s.job, slices.DeleteFunc(slices.Clone(s.pods), tracked))
}

// start sets startTime, from which activeDeadlineSeconds counts.
func (s *sync) start() {
	if s.job.Status.StartTime == nil && !suspended(s.job) {
		s.job.Status.StartTime = new(metav1.NewTime(s.now))
	}
}

func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

func indexed(j *batchv1.Job) bool {
	return j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion
}

func condition(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func finished(j *batchv1.Job) bool {
	return condition(j, batchv1.JobComplete) != nil || condition(j, batchv1.JobFailed) != nil
}
