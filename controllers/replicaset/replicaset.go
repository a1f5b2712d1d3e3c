// Package replicaset keeps as many pods running as a ReplicaSet asks for. ReplicationControllers
// ask for the same in other words, which replicationcontroller translates.
//
// In comes a ReplicaSet and the pods that it controls; out go pods created and deleted, pods
// adopted and released, the status, and the events SuccessfulCreate, SuccessfulDelete,
// FailedCreate and FailedDelete. Which pods go first when there are too many is in
// ranking.go, and the status in status.go.
package replicaset

import (
	"context"
	"fmt"
	"slices"
	"time"

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

// Source is a kind of object that asks for replicas, as ReplicaSets. What it returns from the
// cache must not be changed.
type Source interface {
	// Kind is what the pods' owner references and the events name.
	Kind() schema.GroupVersionKind
	Get(namespace, name string) (*appsv1.ReplicaSet, error)
	List(namespace string) ([]*appsv1.ReplicaSet, error)
	// Live reads past the cache.
	Live(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error)
	UpdateStatus(ctx context.Context, rs *appsv1.ReplicaSet) error
}

const (
	// burst bounds how many pods one reconciliation creates or deletes.
	burst = 500
)

type replicaSets struct {
	*controller.Controller
	*controller.Memory
	client     func() kubernetes.Interface
	source     Source
	pods       cache.SharedIndexInformer
	recorder   record.EventRecorder
	clock      clock.PassiveClock
	dependents *controller.Dependents
}

// New returns the controller.
func New(env *controller.Env) (*controller.Controller, error) {
	sets := env.Informers.Apps().V1().ReplicaSets()
	c, handler, err := NewFor(env, "replicaset", "replicaset-controller", apps{env.Client, sets.Lister()})
	if err != nil {
		return nil, err
	}
	controller.Watch(c, sets.Informer(), handler)
	return c, nil
}

// NewFor returns a controller for the objects of a source, and the handler of their changes.
// component is what its events name.
func NewFor(env *controller.Env, name, component string,
	source Source) (*controller.Controller, controller.Handler[*appsv1.ReplicaSet], error) {
	pods := env.Informers.Core().V1().Pods().Informer()
	if err := controller.IndexByController(pods); err != nil {
		return nil, controller.Handler[*appsv1.ReplicaSet]{}, err
	}
	r := &replicaSets{
		client: env.Client, source: source, pods: pods,
		recorder: env.Recorder(component), clock: env.Clock,
		Memory: controller.NewMemory(env.Clock, controller.MaxFailureDelay),
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
	if old.UID != rs.UID { // deleted and created anew between two events
		r.setDeleted(old)
	}
	r.EnqueueObject(rs)
}

func (r *replicaSets) setDeleted(rs *appsv1.ReplicaSet) {
	r.ForgetOwner(controller.KeyOf(rs))
	r.EnqueueObject(rs)
}

func (r *replicaSets) podAdded(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil { // seen first after a restart
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
		// A graceful deletion shows first as an update, and counts from then on.
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
		// Another write must mend it; trying again would not.
		r.Log.Warn("cannot use an invalid selector", "key", key, "err", err)
		return nil
	}
	// Asked before the cache is read: what arrives in between is then counted, not missed.
	settled := r.Expected.Satisfied(key)
	leaving := r.Expected.Deletions(key)
	all, err := controller.OwnedOrOrphaned[*corev1.Pod](r.pods, rs)
	if err != nil {
		return err
	}
	active, terminating := r.sort(rs, all)
	active, err = controller.Claim(ctx, r.claimer(rs, selector), active)
	if err != nil {
		return err
	}
	var scaleErr error
	stay := slices.DeleteFunc(slices.Clone(active), func(pod *corev1.Pod) bool {
		return slices.Contains(leaving, pod.UID)
	})
	if settled && rs.DeletionTimestamp == nil {
		stay, scaleErr = r.scale(ctx, key, rs, active, all)
	} else if !settled {
		r.EnqueuePeriodic(key, controller.ExpectationsTTL+time.Second)
	}
	// Pods that are being deleted do not count, though the cache still shows them whole: a Deployment
	// that took them for available would take too many others away.
	terminating += int32(len(active) - len(stay))
	active = stay
	return controller.FirstError(scaleErr, r.updateStatus(ctx, key, rs, active, terminating, settled, scaleErr))
}

// sort separates the pods that run, or may yet, from those of rs that are terminating.
func (r *replicaSets) sort(rs *appsv1.ReplicaSet, pods []*corev1.Pod) (active []*corev1.Pod, terminating int32) {
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

// scale creates or deletes at most burst pods, and returns those of the active ones that stay. Those that
// failed are of all.
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
	// Those that were never tried will not be seen either. An attempt that failed has
	// already been taken back.
	r.Expected.CreationFailed(key, n-tried)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the ReplicaSet goes too; there is nothing to try again
	}
	return err
}

func (r *replicaSets) createPod(ctx context.Context, rs *appsv1.ReplicaSet) error {
	pod, err := r.client().CoreV1().Pods(rs.Namespace).Create(ctx, r.newPod(rs), metav1.CreateOptions{})
	if err == nil {
		r.recorder.Eventf(rs, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
		return nil
	}
	// In a namespace that is being deleted there is nothing to report.
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

// podPrefix joins with a dash where a pod may be called so.
func podPrefix(name string) string {
	if prefix := name + "-"; len(prefix) <= maxPrefix {
		return prefix
	}
	return name
}

// delete returns the pods that stay.
func (r *replicaSets) delete(ctx context.Context, key string, rs *appsv1.ReplicaSet, active []*corev1.Pod,
	n int) ([]*corev1.Pod, error) {
	victims := choose(active, r.related(rs), n, r.clock.Now())
	uids := make([]types.UID, len(victims))
	for i, pod := range victims {
		uids[i] = pod.UID
	}
	r.Expected.ExpectDeletions(key, uids...)
	errs := make([]error, len(victims))
	controller.InParallel(len(victims), func(i int) { errs[i] = r.deletePod(ctx, key, rs, victims[i]) })
	stay := slices.DeleteFunc(slices.Clone(active), func(pod *corev1.Pod) bool {
		i := slices.Index(victims, pod)
		return i >= 0 && errs[i] == nil
	})
	return stay, controller.FirstError(errs...)
}

func (r *replicaSets) deletePod(ctx context.Context, key string, rs *appsv1.ReplicaSet, pod *corev1.Pod) error {
	err := r.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		*metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	switch {
	case err == nil:
		r.recorder.Eventf(rs, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		// It is gone, or another has its name: as good as deleted.
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

// related returns the active pods of all ReplicaSets that have the same controller as rs:
// the pods of one Deployment, whose spread over nodes is judged together.
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
