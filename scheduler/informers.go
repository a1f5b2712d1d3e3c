package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/internal/client/informer"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// newInformers returns the informers that the scheduler and its plugins share.
func newInformers(client kubernetes.Interface, log *slog.Logger) *informer.Factory {
	factory := informer.NewFactory(client, informer.Options{Transform: dropManagedFields, Log: log})
	// Pods that have terminated take no room and need no node.
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()
	factory.Restrict(&corev1.Pod{}, func(o *metav1.ListOptions) { o.FieldSelector = running })
	return factory
}

// startInformers feeds the queue and the cache until ctx ends. After that, stop waits for the informers.
func (s *scheduler) startInformers(ctx context.Context) (stop func(), err error) {
	core, storage := s.informers.Core().V1(), s.informers.Storage().V1()
	s.pods = core.Pods().Lister()
	err = errors.Join(
		handleEvents(s, core.Pods().Informer(), s.podSet, s.podGone),
		handleEvents(s, core.Nodes().Informer(), s.nodeSet, s.nodeGone),
		wakeOn[corev1.Namespace](s, framework.Namespace, core.Namespaces().Informer()),
		wakeOn[corev1.PersistentVolume](s, framework.PersistentVolume, core.PersistentVolumes().Informer()),
		wakeOn[corev1.PersistentVolumeClaim](s, framework.PersistentVolumeClaim,
			core.PersistentVolumeClaims().Informer()),
		wakeOn[storagev1.StorageClass](s, framework.StorageClass, storage.StorageClasses().Informer()),
		wakeOn[storagev1.CSINode](s, framework.CSINode, storage.CSINodes().Informer()),
		wakeOn[storagev1.CSIDriver](s, framework.CSIDriver, storage.CSIDrivers().Informer()),
		wakeOn[storagev1.CSIStorageCapacity](s, framework.CSIStorageCapacity,
			storage.CSIStorageCapacities().Informer()),
		wakeOn[storagev1.VolumeAttachment](s, framework.VolumeAttachment, storage.VolumeAttachments().Informer()),
	)
	if err != nil {
		return nil, err
	}
	s.informers.StartWithContext(ctx)
	return s.informers.Shutdown, nil
}

// handleEvents calls set with an object's old state, or nil, and its new one, and removed with its last state.
func handleEvents[T any](s *scheduler, informer toolscache.SharedIndexInformer, set func(old, now *T),
	removed func(*T)) error {
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { set(nil, any(o).(*T)) },
		UpdateFunc: func(old, o any) {
			set(any(old).(*T), any(o).(*T))
		},
		DeleteFunc: func(o any) {
			if object, ok := deleted(o).(*T); ok {
				removed(object)
			}
		},
	})
	if err == nil {
		s.synced = append(s.synced, registration.HasSyncedChecker())
	}
	return err
}

// wakeOn passes every change of a resource to the queue.
func wakeOn[T any](s *scheduler, resource framework.EventResource, informer toolscache.SharedIndexInformer) error {
	return handleEvents(s, informer, func(old, now *T) {
		if old == nil {
			s.happened(resource, framework.Add, nil, now)
		} else {
			s.happened(resource, framework.Update, old, now)
		}
	}, func(old *T) { s.happened(resource, framework.Delete, old, nil) })
}

// happened passes a change to the queue.
func (s *scheduler) happened(resource framework.EventResource, action framework.ActionType, old, now any) {
	s.queue.happened(&framework.Change{ClusterEvent: framework.ClusterEvent{Resource: resource, Action: action},
		Old: old, New: now})
}

// dropManagedFields halves the memory of a pod. The scheduler does not read the fields.
func dropManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// deleted returns the object of a delete event, which may be a tombstone.
func deleted(o any) any {
	if tombstone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return o
}

func (s *scheduler) podSet(old, pod *corev1.Pod) {
	if old != nil && old.UID != pod.UID { // deleted and created again while the watch was interrupted
		s.podGone(old)
		old = nil
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		s.podGone(pod)
	case pod.Spec.NodeName != "":
		s.podBound(old, pod)
	case pod.DeletionTimestamp != nil || s.profiles[schedulerName(pod)] == nil:
		s.queue.remove(pod.UID)
		s.nominator.forget(pod.UID)
	default:
		s.podWaits(old, pod)
	}
}

func (s *scheduler) podWaits(old, pod *corev1.Pod) {
	info := framework.NewPodInfo(pod)
	var before *framework.PodInfo
	var change *framework.Change
	if old != nil {
		before = framework.NewPodInfo(old)
		if action := podChange(before, info); action != 0 {
			change = &framework.Change{
				ClusterEvent: framework.ClusterEvent{Resource: framework.UnscheduledPod, Action: action},
				Old:          before, New: info,
			}
		}
	}
	s.nominator.seen(before, info)
	s.queue.set(info, change)
}

func (s *scheduler) podBound(old, pod *corev1.Pod) {
	s.queue.remove(pod.UID)
	s.nominator.forget(pod.UID)
	info, action := framework.NewPodInfo(pod), framework.Add
	var before any
	if old != nil && old.Spec.NodeName != "" {
		o := s.cached(old)
		before, action = o, podChange(o, info)
		if action == 0 && (old.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) &&
			old.Status.StartTime.Equal(pod.Status.StartTime) {
			return // plugins do not read the changed fields
		}
	}
	s.cache.mu.Lock()
	s.cache.setPod(info)
	s.cache.mu.Unlock()
	if action != 0 {
		s.happened(framework.AssignedPod, action, before, info)
	}
}

// cached returns the cache's entry of a bound pod.
func (s *scheduler) cached(pod *corev1.Pod) *framework.PodInfo {
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if c := s.cache.pods[pod.UID]; c != nil {
		return c.info
	}
	return framework.NewPodInfo(pod)
}

func (s *scheduler) podGone(pod *corev1.Pod) {
	s.queue.remove(pod.UID)
	s.nominator.forget(pod.UID)
	s.cache.mu.Lock()
	removed := s.cache.removePod(pod.UID)
	s.cache.mu.Unlock()
	if removed != nil {
		s.happened(framework.AssignedPod, framework.Delete, removed, nil)
	}
}

func (s *scheduler) nodeSet(old, node *corev1.Node) {
	action := framework.Add
	var before any
	if old != nil {
		if action = nodeChange(old, node); action == 0 {
			return // a heartbeat
		}
		before = framework.NewNodeInfo(old)
	}
	s.cache.mu.Lock()
	s.cache.setNode(node)
	s.cache.mu.Unlock()
	s.happened(framework.Node, action, before, framework.NewNodeInfo(node))
}

func (s *scheduler) nodeGone(node *corev1.Node) {
	s.cache.mu.Lock()
	s.cache.removeNode(node.Name)
	s.cache.mu.Unlock()
	s.happened(framework.Node, framework.Delete, framework.NewNodeInfo(node), nil)
}

// podChange returns the changed parts that plugins read; zero if there is none.
func podChange(old, pod *framework.PodInfo) (action framework.ActionType) {
	add := func(changed bool, bit framework.ActionType) {
		if changed {
			action |= bit
		}
	}
	add(!maps.Equal(old.Pod.Labels, pod.Pod.Labels), framework.UpdatePodLabel)
	if !equality.Semantic.DeepEqual(old.Requests, pod.Requests) {
		add(pod.Requests.Within(&old.Requests), framework.UpdatePodScaleDown)
		add(!pod.Requests.Within(&old.Requests), framework.UpdateOther)
	}
	a, b := &old.Pod.Spec, &pod.Pod.Spec
	add(!equality.Semantic.DeepEqual(a.Tolerations, b.Tolerations), framework.UpdatePodToleration)
	add(len(a.SchedulingGates) > 0 && len(b.SchedulingGates) == 0, framework.UpdatePodSchedulingGatesEliminated)
	add(!equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector) ||
		!equality.Semantic.DeepEqual(a.Affinity, b.Affinity) ||
		!ptr.Equal(a.Priority, b.Priority), framework.UpdateOther)
	return action
}

// nodeChange returns the changed parts that plugins read; zero if there is none, as with heartbeats.
func nodeChange(old, node *corev1.Node) (action framework.ActionType) {
	add := func(changed bool, bit framework.ActionType) {
		if changed {
			action |= bit
		}
	}
	add(!equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable), framework.UpdateNodeAllocatable)
	add(!maps.Equal(old.Labels, node.Labels), framework.UpdateNodeLabel)
	add(old.Spec.Unschedulable != node.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints,
		node.Spec.Taints), framework.UpdateNodeTaint)
	add(!maps.Equal(old.Annotations, node.Annotations), framework.UpdateNodeAnnotation)
	add(old.UID != node.UID || !equality.Semantic.DeepEqual(old.Status.Images, node.Status.Images),
		framework.UpdateOther)
	return action
}
