// Package replicaset runs the number of pods that a ReplicaSet specifies. The package replicationcontroller uses it for
// ReplicationControllers.
//
// Its input is a ReplicaSet and the pods that it controls. It creates, deletes, adopts and releases pods, and writes
// the status and the events SuccessfulCreate, SuccessfulDelete, FailedCreate and FailedDelete. ranking.go decides which
// pods are deleted first, status.go has the status.
package replicaset

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Source provides objects of one kind, converted to ReplicaSets. The caller must not change objects from Get and List,
// which are in the cache.
type Source interface {
	// Kind returns the kind in the pods' owner references and in events.
	Kind() schema.GroupVersionKind
	Get(namespace, name string) (*appsv1.ReplicaSet, error)
	List(namespace string) ([]*appsv1.ReplicaSet, error)
	// Live reads the object from the API server.
	Live(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error)
	UpdateStatus(ctx context.Context, rs *appsv1.ReplicaSet) error
}

const (
	// burst limits the number of pods that one reconciliation creates or deletes.
	burst = 500
)

type replicaSets struct {
	*controller.Controller
	*controller.OwnerExpectations
	client     func() kubernetes.Interface
	source     Source
	pods       cache.SharedIndexInformer
	recorder   record.EventRecorder
	clock      clock.PassiveClock
	dependents *controller.Dependents
	ageRatio   func() *prometheus.HistogramVec
}

// New returns the controller. Its keys are ReplicaSets.
func New(env *controller.Env) (*controller.Controller, error) {
	sets := env.Informers.Apps().V1().ReplicaSets()
	c, handler, err := NewFor(env, "replicaset", "replicaset-controller", apps{env.Client, sets.Lister()})
	if err != nil {
		return nil, err
	}
	controller.Watch(c, sets.Informer(), handler)
	return c, nil
}

// NewFor returns a controller for the objects of a source, and the handler for changes of these objects, which the
// caller must register. component is the source of the controller's events.
func NewFor(env *controller.Env, name, component string,
	source Source) (*controller.Controller, controller.Handler[*appsv1.ReplicaSet], error) {
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := controller.IndexByController(pods); err != nil {
		return nil, controller.Handler[*appsv1.ReplicaSet]{}, err
	}
	r := &replicaSets{
		client: env.Client, source: source, pods: pods,
		recorder: env.Recorder(component), clock: env.Clock,
		OwnerExpectations: controller.NewOwnerExpectations(env.Clock, controller.MaxFailureDelay),
		ageRatio: env.Metrics.Histogram("replicaset_controller_sorting_deletion_age_ratio",
			"The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2. "+
				"The intent of this metric is to measure the rough efficacy of the LogarithmicScaleDown feature "+
				"gate's effect on the sorting (and deletion) of pods when a replicaset scales down. This only "+
				"considers Ready pods when calculating and reporting.", prometheus.ExponentialBuckets(0.25, 2, 6)),
	}
	r.Controller = controller.New(env, name, r.reconcile)
	r.dependents = &controller.Dependents{Controller: r.Controller, Kind: source.Kind(), Expected: r.Expected,
		Adopters: controller.Adopters(
			r.Controller, source.List, func(rs *appsv1.ReplicaSet) *metav1.LabelSelector { return rs.Spec.Selector })}
	controller.Watch(r.Controller, pods, controller.Handler[*corev1.Pod]{
		Add: r.podAdded, Update: r.podUpdated, Delete: func(pod *corev1.Pod) { r.dependents.Gone(pod) },
	})
	return r.Controller, controller.Handler[*appsv1.ReplicaSet]{
		Add:    func(rs *appsv1.ReplicaSet) { r.EnqueueObject(rs) },
		Update: r.setUpdated,
		Delete: r.setDeleted,
	}, nil
}

func (r *replicaSets) setUpdated(old, rs *appsv1.ReplicaSet) {
	if old.UID != rs.UID { // deleted and created again between two events
		r.setDeleted(old)
	}
	r.EnqueueObject(rs)
}

func (r *replicaSets) setDeleted(rs *appsv1.ReplicaSet) {
	r.ForgetOwner(controller.KeyOf(rs))
	r.EnqueueObject(rs)
}

func (r *replicaSets) podAdded(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil { // the first event of the pod, after a restart
		r.dependents.Gone(pod)
		return
	}
	if key, ok := r.dependents.OwnerKey(pod); ok {
		r.Expected.CreationObserved(key)
	}
	r.dependents.Changed(pod)
}

func (r *replicaSets) podUpdated(old, pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		// A graceful deletion appears first as an update that sets deletionTimestamp. From then on the pod counts as
		// deleted.
		r.dependents.Gone(pod)
		if old.UID != pod.UID {
			r.dependents.Gone(old)
		}
		return
	}
	r.dependents.Moved(old, pod)
	r.dependents.Changed(pod)
}

func (r *replicaSets) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	rs, err := r.source.Get(namespace, name)
	if apierrors.IsNotFound(err) {
		r.ForgetOwner(key)
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		// Only a change of the object can fix it, so that a retry is useless.
		r.Log.Warn("cannot use an invalid selector", "key", key, "err", err)
		return nil
	}
	// The order matters: the expectations are read before the cache, so that the cache has every pod that has satisfied
	// them.
	settled := r.Expected.Satisfied(key)
	leaving := r.Expected.Deletions(key)
	all, err := controller.OwnedOrOrphaned[*corev1.Pod](r.pods, rs)
	if err != nil {
		return err
	}
	active, terminating := r.split(rs, all)
	active, err = controller.Claim(ctx, r.claimer(rs, selector), active)
	if err != nil {
		return err
	}
	var scaleErr error
	remaining := slices.DeleteFunc(slices.Clone(active), func(pod *corev1.Pod) bool {
		return slices.Contains(leaving, pod.UID)
	})
	if settled && rs.DeletionTimestamp == nil {
		remaining, scaleErr = r.scale(ctx, key, rs, active, all)
	} else if !settled {
		r.EnqueuePeriodic(key, controller.ExpectationsTTL+time.Second)
	}
	// Pods that were just deleted do not count, although the cache still shows them as active. If they counted as
	// available, a Deployment would scale down too many others.
	terminating += int32(len(active) - len(remaining))
	active = remaining
	return controller.FirstError(scaleErr, r.updateStatus(ctx, key, rs, active, terminating, settled, scaleErr))
}

// split returns the active pods and the number of terminating pods of rs.
func (r *replicaSets) split(rs *appsv1.ReplicaSet, pods []*corev1.Pod) (active []*corev1.Pod, terminating int32) {
	for _, pod := range pods {
		switch {
		case controller.PodActive(pod):
			active = append(active, pod)
		case controller.PodTerminating(pod) && metav1.IsControlledBy(pod, rs):
			terminating++
		}
	}
	return active, terminating
}

func (r *replicaSets) claimer(rs *appsv1.ReplicaSet, selector labels.Selector) controller.Claimer {
	return controller.Claimer{
		Owner: rs, Kind: r.source.Kind(), Selector: selector,
		Live: func(ctx context.Context) (metav1.Object, error) {
			return r.source.Live(ctx, rs.Namespace, rs.Name)
		},
		Patch: func(ctx context.Context, pod metav1.Object, patch []byte) error {
			_, err := r.client().CoreV1().Pods(rs.Namespace).Patch(ctx, pod.GetName(),
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
}

// scale creates or deletes at most burst pods and returns the active pods that remain. It also deletes surplus failed
// pods. all are all pods, including failed ones.
func (r *replicaSets) scale(ctx context.Context, key string, rs *appsv1.ReplicaSet, active,
	all []*corev1.Pod) ([]*corev1.Pod, error) {
	missing := int(replicas(rs)) - len(active)
	if allowed, wait := r.Failures.Allow(key, missing, all); wait > 0 {
		missing = allowed
		r.EnqueueAfter(key, wait)
	}
	pruned := controller.PruneFailed(ctx, r.client(), rs, all)
	switch {
	case missing > 0:
		return active, controller.FirstError(r.create(ctx, key, rs, min(missing, burst)), pruned)
	case missing < 0:
		return r.delete(ctx, key, rs, active, min(-missing, burst))
	}
	return active, pruned
}

func (r *replicaSets) create(ctx context.Context, key string, rs *appsv1.ReplicaSet, n int) error {
	r.Expected.ExpectCreations(key, n)
	tried, err := controller.SlowStart(n, func(int) error {
		err := r.createPod(ctx, rs)
		if err != nil {
			r.Expected.CreationFailed(key, 1)
		}
		return err
	})
	// Creations that were not attempted are no longer expected. A failed attempt has already reduced the expectation.
	r.Expected.CreationFailed(key, n-tried)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the ReplicaSet is deleted as well: a retry is useless
	}
	return err
}

func (r *replicaSets) createPod(ctx context.Context, rs *appsv1.ReplicaSet) error {
	pod, err := r.client().CoreV1().Pods(rs.Namespace).Create(ctx, r.newPod(rs), metav1.CreateOptions{})
	if err == nil {
		r.recorder.Eventf(rs, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
		return nil
	}
	// Failures in a terminating namespace are expected, and not reported.
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		r.recorder.Eventf(rs, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
	}
	return err
}

func (r *replicaSets) newPod(rs *appsv1.ReplicaSet) *corev1.Pod {
	template := rs.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    podPrefix(rs.Name),
			Namespace:       rs.Namespace,
			Labels:          template.Labels,
			Annotations:     template.Annotations,
			Finalizers:      template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(rs, r.source.Kind())},
		},
		Spec: template.Spec,
	}
}

// maxPrefix leaves room for the five characters that the server adds to a generated name.
const maxPrefix = 63 - 5

// podPrefix returns the prefix of generated pod names. It ends with a dash, unless the name would become too long.
func podPrefix(name string) string {
	if prefix := name + "-"; len(prefix) <= maxPrefix {
		return prefix
	}
	return name
}

// delete deletes n of the active pods and returns the pods that remain.
func (r *replicaSets) delete(ctx context.Context, key string, rs *appsv1.ReplicaSet, active []*corev1.Pod,
	n int) ([]*corev1.Pod, error) {
	victims := choose(active, r.related(rs), n, r.clock.Now())
	r.compareAges(active, victims)
	uids := make([]types.UID, len(victims))
	for i, pod := range victims {
		uids[i] = pod.UID
	}
	r.Expected.ExpectDeletions(key, uids...)
	errs := make([]error, len(victims))
	controller.InParallel(len(victims), func(i int) { errs[i] = r.deletePod(ctx, key, rs, victims[i]) })
	remaining := slices.DeleteFunc(slices.Clone(active), func(pod *corev1.Pod) bool {
		i := slices.Index(victims, pod)
		return i >= 0 && errs[i] == nil
	})
	return remaining, controller.FirstError(errs...)
}

func (r *replicaSets) deletePod(ctx context.Context, key string, rs *appsv1.ReplicaSet, pod *corev1.Pod) error {
	err := r.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		*metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	switch {
	case err == nil:
		r.recorder.Eventf(rs, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		// The pod no longer exists, or another pod has its name: it counts as deleted.
		r.Expected.DeletionObserved(key, pod.UID)
		return nil
	}
	r.Expected.DeletionObserved(key, pod.UID)
	r.recorder.Eventf(rs, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	return err
}

func replicas(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

// related returns the active pods of all ReplicaSets with the same controller as rs: the pods of one Deployment, whose
// spread over nodes counts together.
func (r *replicaSets) related(rs *appsv1.ReplicaSet) []*corev1.Pod {
	siblings := []*appsv1.ReplicaSet{rs}
	if owner := metav1.GetControllerOfNoCopy(rs); owner != nil {
		all, err := r.source.List(rs.Namespace)
		if err == nil {
			for _, other := range all {
				if ref := metav1.GetControllerOfNoCopy(other); ref != nil && ref.UID == owner.UID &&
					other.UID != rs.UID {
					siblings = append(siblings, other)
				}
			}
		}
	}
	var pods []*corev1.Pod
	for _, sibling := range siblings {
		all, err := controller.OwnedOrOrphaned[*corev1.Pod](r.pods, sibling)
		if err != nil {
			panic(fmt.Sprintf("replicaset: the pods' index is missing: %v", err))
		}
		for _, pod := range all {
			if metav1.IsControlledBy(pod, sibling) && controller.PodActive(pod) {
				pods = append(pods, pod)
			}
		}
	}
	return pods
}
