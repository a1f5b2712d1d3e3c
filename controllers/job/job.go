// Package job runs pods until as many of them have succeeded as a Job asks for.
//
// In comes a Job and its pods; out go pods, the status, and the events of Job's life. Each sync of
// a Job takes the same steps, and the files follow them:
//
//	job.go      what the controller listens to, and one sync from beginning to end
//	pods.go     what a pod counts for: failed, succeeded, ignored; the pod failure policy
//	indexes.go  Indexed Jobs: which indexes have succeeded or failed
//	verdict.go  is the Job over, and why: back-off limits, deadline, success policy, suspension
//	scale.go    pods to make and to delete, and how long to wait after failures
//	track.go    counting each pod exactly once, by finalizer; writing the status
//	orphan.go   pods that keep a finalizer for a Job which no longer counts them
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

// Kind is what the pods' owner references name.
var Kind = batchv1.SchemeGroupVersion.WithKind("Job")

// managedByUs is the value of spec.managedBy, where it is given, of the Jobs that are ours.
const managedByUs = "kubernetes.io/job-controller"

// batchPeriod gathers the changes of many pods into one sync, because each costs status writes.
const batchPeriod = 100 * time.Millisecond

type jobs struct {
	*controller.Controller
	// Memory delays a sync until the cache has what the last one wrote: pods, removed finalizers and the status, by
	// version, and deletions, by uid.
	*controller.Memory
	client   func() kubernetes.Interface
	jobs     batchlisters.JobLister
	informer cache.SharedIndexInformer
	podList  corelisters.PodLister
	pods     cache.SharedIndexInformer
	recorder record.EventRecorder
	clock    clock.PassiveClock

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
		recorder: env.Recorder("job-controller"), clock: env.Clock,
		Memory: controller.NewMemory(env.Clock, controller.MaxFailureDelay),
	}
	c.Controller = controller.New(env, "job", c.reconcile)
	c.dependents = &controller.Dependents{Controller: c.Controller, Kind: Kind, Expected: c.Expected,
		Adopters: controller.Adopters(c.Controller,
			func(namespace string) ([]*batchv1.Job, error) {
				return c.jobs.Jobs(namespace).List(labels.Everything())
			},
			func(j *batchv1.Job) *metav1.LabelSelector { return j.Spec.Selector })}
	controller.Watch(c.Controller, batch.Informer(), controller.Handler[*batchv1.Job]{
		Add:    func(j *batchv1.Job) { c.EnqueueObject(j) },
		Update: func(_, j *batchv1.Job) { c.jobUpdated(j) },
		Delete: c.jobDeleted,
	})
	controller.Watch(c.Controller, core.Informer(), controller.Handler[*corev1.Pod]{
		Add: c.podAdded, Update: c.podUpdated, Delete: c.podDeleted,
	})
	return c.Controller, nil
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
	if pod.DeletionTimestamp != nil {
		c.podDeleted(pod)
		return
	}
	c.dependents.Changed(pod)
	c.enqueueOrphan(pod)
}

func (c *jobs) podUpdated(old, pod *corev1.Pod) {
	c.enqueueOrphan(pod)
	if pod.DeletionTimestamp != nil {
		c.podDeleted(pod)
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
	c.enqueueOrphan(pod)
	c.dependents.Gone(pod)
}

// sync is one reconciliation of a Job: the Job as it becomes, its pods, and what they amount to.
type sync struct {
	*jobs
	key  string
	job  *batchv1.Job // a copy
	was  *batchv1.JobStatus
	pods []*corev1.Pod
	now  time.Time

	active      []*corev1.Pod
	terminating int32
	ended       []*corev1.Pod // with our finalizer: neither counted nor noted in the status yet
	succeeded   int32
	failed      int32
	done        intervals // Indexed: the indexes that have succeeded, and
	lost        intervals // those that have failed for good
	latest      map[int]*corev1.Pod
	verdict     *batchv1.JobCondition
}

func (c *jobs) reconcile(ctx context.Context, key string) error {
	if orphan, ok := strings.CutPrefix(key, orphanPrefix); ok {
		return c.release(ctx, orphan)
	}
	job, ok := controller.Settled[*batchv1.Job](c.Controller, c.Memory, c.informer, key)
	if !ok {
		return nil
	}
	if finished(job) || managedElsewhere(job) {
		c.Failures.Forget(key)
		return nil
	}
	s := &sync{jobs: c, key: key, job: job.DeepCopy(), was: job.Status.DeepCopy(), now: c.clock.Now()}
	var err error
	if s.pods, err = c.claim(ctx, job); err != nil {
		return err
	}
	return s.run(ctx)
}

// client404 takes an object that is no longer there for one that needs nothing more.
func client404(err error) error {
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
			is, err := c.client().CoreV1().Pods(job.Namespace).Patch(ctx, pod.GetName(),
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			if err == nil {
				patched[is.UID] = is
			}
			return err
		},
	}, all)
	// The cache does not show yet that an adopted pod has our finalizer, by which it is judged and let go.
	for i, pod := range mine {
		if adopted := patched[pod.UID]; adopted != nil {
			mine[i] = adopted
		}
	}
	return mine, err
}

// run judges, acts, and counts, in this order: a Job that is over makes no pod any more, and what is
// counted is what was judged.
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

// prune bounds the failed pods of a Job whose backoffLimit is large. Those that are not counted yet, or whose
// index needs their account, have our finalizer.
func (s *sync) prune(ctx context.Context) error {
	return controller.PruneFailed(ctx, s.client(), s.job, slices.DeleteFunc(slices.Clone(s.pods), tracked))
}

// start notes when the Job began, from which its deadline is counted.
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
