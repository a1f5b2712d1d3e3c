// Package podautoscaler scales workloads by metrics of their pods, of other objects, or from outside the cluster.
//
// Its input is a HorizontalPodAutoscaler, the scale of its target and the metrics APIs. It writes the target's scale
// and the autoscaler's status. The files:
//
//	podautoscaler.go  the controller, and one sync of an autoscaler
//	compute.go        a replica count for each metric of the spec; the largest counts
//	replicas.go       from metrics to a replica count, as Kubernetes documents it
//	pods.go           which pods count, and how unready pods and pods without metrics count
//	behavior.go       how fast the count may change: stabilization windows, policies, bounds
//	status.go         conditions
//	metrics.go        reading the metrics APIs
//	monitor.go        kube-controller-manager's metrics of autoscalers
//
// Past recommendations and changes, which stabilization and policies need, are kept in memory, as in
// Kubernetes. After a restart the current scale is the first recommendation, so that no target is scaled down before a
// stabilization window has passed.
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
package podautoscaler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

type autoscaler struct {
	*controller.Controller
	env      *controller.Env
	settings controller.AutoscalerSettings
	hpas     autoscalinglisters.HorizontalPodAutoscalerLister
	informer cache.SharedIndexInformer // of the autoscalers
	pods     corelisters.PodLister
	metrics  *metricsClient
	recorder record.EventRecorder
	monitor  *monitor
	// scales returns a mapper and a getter for the scales of targets. They are created at the first use, because they
	// need discovery.
	scales func() (meta.ResettableRESTMapper, scale.ScalesGetter)
	// expected delays a sync until the cache has the status that the last sync wrote, because a sync depends on the
	// condition ScaledToZero.
	expected controller.VersionExpectations

	mu        sync.Mutex
	memories  map[string]*past
	selectors map[string]labels.Selector // of the targets, by the keys of their autoscalers
}

// cacheDelay is the delay before the retry of a sync if the cache did not yet have the last status.
const cacheDelay = 50 * time.Millisecond

// past holds the earlier recommendations and changes of an autoscaler.
type past struct {
	recommendations []recommendation
	ups, downs      []change
}

// New returns the controller. Its keys are HorizontalPodAutoscalers. It reconciles each once in a sync period.
func New(env *controller.Env) (*controller.Controller, error) {
	hpas, core := env.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), env.Informers.Core().V1()
	a := &autoscaler{
		env: env, settings: env.Settings.Autoscaler, hpas: hpas.Lister(), informer: hpas.Informer(),
		pods: core.Pods().Lister(),
		metrics: &metricsClient{client: func() rest.Interface { return env.Client().Discovery().RESTClient() },
			clock: env.Clock, recheck: env.Settings.Autoscaler.SyncPeriod},
		recorder: env.Recorder("horizontal-pod-autoscaler"),
		memories: map[string]*past{}, selectors: map[string]labels.Selector{},
		scales: sync.OnceValues(func() (meta.ResettableRESTMapper, scale.ScalesGetter) {
			d := env.Client().Discovery()
			mapper := controller.NewMapper(d, env.Clock)
			return mapper, scale.New(d.RESTClient(), mapper, dynamic.LegacyAPIPathResolverFunc,
				scale.NewDiscoveryScaleKindResolver(d))
		}),
	}
	a.monitor = a.newMonitor(env.Metrics)
	// After a failure the next sync comes after the period as well, without back-off.
	a.Controller = controller.NewWithBackoff(env, "horizontalpodautoscaling", a.reconcile, a.settings.SyncPeriod,
		a.settings.SyncPeriod)
	controller.Watch(a.Controller, hpas.Informer(), controller.Handler[*autoscalingv2.HorizontalPodAutoscaler]{
		Add: func(h *autoscalingv2.HorizontalPodAutoscaler) { a.EnqueueObject(h) },
		Update: func(old, h *autoscalingv2.HorizontalPodAutoscaler) {
			if old.Generation != h.Generation || !equality.Semantic.DeepEqual(old.Spec, h.Spec) || old.UID != h.UID {
				a.EnqueueObject(h)
			}
		},
		Delete: func(h *autoscalingv2.HorizontalPodAutoscaler) { a.EnqueueObject(h) },
	})
	controller.Watch(a.Controller, core.Pods().Informer(), controller.Handler[*corev1.Pod]{})
	return a.Controller, nil
}

func (a *autoscaler) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil // not one of our keys
	}
	hpa, err := a.hpas.HorizontalPodAutoscalers(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.expected.Forget(key)
		delete(a.memories, key)
		delete(a.selectors, key)
		return nil
	}
	if err != nil || hpa.DeletionTimestamp != nil {
		return err
	}
	if !a.expected.Satisfied(key) {
		a.EnqueueBatched(key, cacheDelay) // a status change does not enqueue the key
		return nil
	}
	if hpa, err = a.hpas.HorizontalPodAutoscalers(namespace).Get(name); err != nil {
		return nil // deleted meanwhile; the delete event enqueues the key again
	}
	if err := a.sync(ctx, key, hpa.DeepCopy()); err != nil {
		return err
	}
	a.EnqueuePeriodic(key, a.settings.SyncPeriod)
	return nil
}

// sync scales the target of an autoscaler once and writes the autoscaler's status if it changed. It modifies hpa.
func (a *autoscaler) sync(ctx context.Context, key string, hpa *autoscalingv2.HorizontalPodAutoscaler) error {
	before := hpa.Status.DeepCopy()
	s := &session{autoscaler: a, key: key, hpa: hpa, memory: a.memoryOf(key), now: a.env.Clock.Now(), action: "none"}
	err := s.run(ctx)
	a.monitor.reconciled(s.action, a.env.Clock.Since(s.now), err)
	hpa.Status.ObservedGeneration = &hpa.Generation
	if !equality.Semantic.DeepEqual(before, &hpa.Status) {
		if writeErr := a.writeStatus(ctx, key, hpa); writeErr != nil && !apierrors.IsNotFound(writeErr) {
			a.recorder.Event(hpa, corev1.EventTypeWarning, "FailedUpdateStatus", writeErr.Error())
			return fmt.Errorf("update status of autoscaler %s: %w", key, writeErr)
		}
	}
	return err
}

// writeStatus writes the status, even if the spec was changed meanwhile: a target that was scaled to zero is scaled up
// again only if the status records it.
func (a *autoscaler) writeStatus(ctx context.Context, key string, hpa *autoscalingv2.HorizontalPodAutoscaler) error {
	hpas := a.env.Client().AutoscalingV2().HorizontalPodAutoscalers(hpa.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		written, err := hpas.UpdateStatus(ctx, hpa, metav1.UpdateOptions{})
		if err == nil {
			a.expected.Expect(key, a.informer, written.ResourceVersion)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		live, getErr := hpas.Get(ctx, hpa.Name, metav1.GetOptions{})
		if getErr != nil || live.UID != hpa.UID {
			return getErr
		}
		live.Status, hpa = hpa.Status, live
		return err
	})
}

// memoryOf returns the past of an autoscaler, which the caller may change without the lock.
func (a *autoscaler) memoryOf(key string) *past {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.memories[key] == nil {
		a.memories[key] = &past{}
	}
	return a.memories[key] // calls for one key never overlap
}

// session is one sync of one autoscaler.
type session struct {
	*autoscaler
	key      string
	hpa      *autoscalingv2.HorizontalPodAutoscaler
	memory   *past
	now      time.Time
	target   *autoscalingv1.Scale
	selector labels.Selector
	// reason is the reason of a change of the scale, for events.
	reason string
	action string // for the metrics
}

func (s *session) run(ctx context.Context) error {
	hpa := s.hpa
	resource, err := s.findTarget(ctx)
	if err != nil {
		s.recorder.Event(hpa, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		s.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
			"the HPA controller was unable to get the target's current scale: %v", err)
		return err
	}
	s.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	if len(s.memory.recommendations) == 0 {
		s.memory.recommendations = []recommendation{{s.target.Spec.Replicas, s.now}}
	}
	current := s.target.Spec.Replicas
	desired, err := s.desired(ctx, current)
	if err != nil {
		hpa.Status.CurrentReplicas = s.target.Status.Replicas
		s.recorder.Event(hpa, corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
		return fmt.Errorf("failed to compute desired number of replicas based on listed metrics for %s: %w", s.key, err)
	}
	hpa.Status.CurrentReplicas, hpa.Status.DesiredReplicas = s.target.Status.Replicas, desired
	if desired == current {
		return nil
	}
	s.action = actionLabel(current, desired)
	return s.rescale(ctx, resource, desired)
}

// findTarget reads the scale of the target and returns the target's resource.
func (s *session) findTarget(ctx context.Context) (schema.GroupResource, error) {
	ref := s.hpa.Spec.ScaleTargetRef
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return schema.GroupResource{}, invalidSpec{fmt.Errorf("invalid API version in scale target reference: %w", err)}
	}
	kind := schema.GroupKind{Group: gv.Group, Kind: ref.Kind}
	mapper, getter := s.scales()
	mapping, err := mapper.RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		mapper.Reset() // the kind may have been defined since
		mapping, err = mapper.RESTMapping(kind)
	}
	if err != nil {
		return schema.GroupResource{}, fmt.Errorf("unable to determine resource for scale target reference: %w", err)
	}
	resource := mapping.Resource.GroupResource()
	s.target, err = getter.Scales(s.hpa.Namespace).Get(ctx, resource, ref.Name, metav1.GetOptions{})
	return resource, err
}

// desired returns the replica count to scale to, within all bounds.
func (s *session) desired(ctx context.Context, current int32) (int32, error) {
	minReplicas := s.minReplicas()
	switch {
	case current == 0 && !s.mayScaleFromZero(): // a client that wrote 0 has disabled scaling
		s.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
		return 0, nil
	case current > s.hpa.Spec.MaxReplicas:
		s.reason = "Current number of replicas above Spec.MaxReplicas"
		return s.hpa.Spec.MaxReplicas, nil
	case current < minReplicas && current > 0:
		s.reason = "Current number of replicas below Spec.MinReplicas"
		return minReplicas, nil
	}
	recommended, metric, err := s.compute(ctx)
	if err != nil {
		return 0, err
	}
	switch {
	case recommended > current:
		s.reason = metric + " above target"
	case recommended < current:
		s.reason = "All metrics below target"
	}
	desired := s.normalize(current, recommended, minReplicas)
	if current == 0 && desired < minReplicas { // policies for scaling up do not limit this
		s.reason, desired = "Current number of replicas below Spec.MinReplicas", minReplicas
	}
	return desired, nil
}

// minReplicas returns the minimum of the spec, 1 by default.
func (s *session) minReplicas() int32 {
	if s.hpa.Spec.MinReplicas != nil {
		return *s.hpa.Spec.MinReplicas
	}
	return 1
}

// mayScaleFromZero reports whether the autoscaler may scale up a target without replicas. It must have scaled it to
// zero itself, which the condition ScaledToZero records, and now have a minimum above zero or a metric that needs no
// pods.
func (s *session) mayScaleFromZero() bool {
	for _, c := range s.hpa.Status.Conditions {
		if c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue {
			return s.minReplicas() > 0 || s.hasMetricWithoutPods()
		}
	}
	return false
}

// hasMetricWithoutPods reports whether the spec has a metric that exists without pods: an object or external one.
func (s *session) hasMetricWithoutPods() bool {
	return slices.ContainsFunc(s.hpa.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

// rescale writes the replica count to the target's scale, and records the change in conditions, events and memory.
func (s *session) rescale(ctx context.Context, resource schema.GroupResource, desired int32) error {
	_, getter := s.scales()
	current := s.target.Spec.Replicas
	s.target.Spec.Replicas = desired
	if _, err := getter.Scales(s.hpa.Namespace).Update(ctx, resource, s.target, metav1.UpdateOptions{}); err != nil {
		s.recorder.Eventf(s.hpa, corev1.EventTypeWarning, "FailedRescale", "New size: %d; reason: %s; error: %v",
			desired, s.reason, err)
		s.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			"the HPA controller was unable to update the target scale: %v", err)
		s.hpa.Status.DesiredReplicas = current
		return fmt.Errorf("rescale the target of %s: %w", s.key, err)
	}
	s.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		"the HPA controller was able to update the target scale to %d", desired)
	s.recorder.Eventf(s.hpa, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", desired, s.reason)
	if current > 0 && desired == 0 {
		s.condition(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero",
			"the HPA controller scaled the workload to zero")
	} else {
		s.condition(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	s.memory.changed(current, desired, s.now)
	s.hpa.Status.LastScaleTime = &metav1.Time{Time: s.now}
	return nil
}
