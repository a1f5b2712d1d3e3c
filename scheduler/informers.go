package scheduler

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"time"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// startInformers feeds the queue and the cache until ctx ends; stop then waits for the informers.
func (s *scheduler) startInformers(ctx context.Context) (stop func(), err error) {
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTransform(dropManagedFields))
	// Pods that have ended take no room and need no node.
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()
	pods := factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) toolscache.SharedIndexInformer {
		return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, toolscache.Indexers{},
			func(o *metav1.ListOptions) { o.FieldSelector = running })
	})
	nodes := factory.Core().V1().Nodes().Informer()
	s.pods = factory.Core().V1().Pods().Lister()

	podHandler, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.podSet(nil, o.(*corev1.Pod)) },
		UpdateFunc: func(old, o any) { s.podSet(old.(*corev1.Pod), o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if pod, ok := deleted(o).(*corev1.Pod); ok {
				s.podGone(pod)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	nodeHandler, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.nodeSet(nil, o.(*corev1.Node)) },
		UpdateFunc: func(old, o any) { s.nodeSet(old.(*corev1.Node), o.(*corev1.Node)) },
		DeleteFunc: func(o any) {
			if node, ok := deleted(o).(*corev1.Node); ok {
				s.nodeGone(node)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.synced = func(ctx context.Context) bool {
		// The handlers, not only the stores: a node that has not reached the cache yet cannot be chosen.
		return toolscache.WaitForCacheSync(ctx.Done(), podHandler.HasSynced, nodeHandler.HasSynced)
	}
	factory.Start(ctx.Done())
	return factory.Shutdown, nil
}

// dropManagedFields halves the memory of a pod; nothing here reads them.
func dropManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// deleted is the object of a delete event, which may be only a memory of one.
func deleted(o any) any {
	if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return o
}

func (s *scheduler) podSet(old, pod *corev1.Pod) {
	if old != nil && old.UID != pod.UID { // deleted and made anew while the watch was down
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
	default:
		s.queue.set(framework.NewPodInfo(pod), old != nil && podChanged(old, pod))
	}
}

func (s *scheduler) podBound(old, pod *corev1.Pod) {
	s.queue.remove(pod.UID)
	wasBound := old != nil && old.Spec.NodeName != ""
	changed := wasBound && (podChanged(old, pod) || resized(old, pod))
	if wasBound && !changed {
		return // a status write: nothing that the cache counts
	}
	info := framework.NewPodInfo(pod)
	s.cache.mu.Lock()
	s.cache.setPod(info)
	s.cache.mu.Unlock()
	if changed {
		s.queue.happened(framework.AssignedPodUpdated, nil)
	} else {
		s.queue.happened(framework.AssignedPodAdded, nil)
	}
}

func (s *scheduler) podGone(pod *corev1.Pod) {
	s.queue.remove(pod.UID)
	s.cache.mu.Lock()
	made := s.cache.removePod(pod.UID)
	s.cache.mu.Unlock()
	if made {
		s.queue.happened(framework.AssignedPodDeleted, nil)
	}
}

func (s *scheduler) nodeSet(old, node *corev1.Node) {
	if old != nil && !nodeChanged(old, node) {
		return // a heartbeat
	}
	s.cache.mu.Lock()
	s.cache.setNode(node)
	s.cache.mu.Unlock()
	event := framework.NodeAdded
	if old != nil {
		event = framework.NodeUpdated
	}
	s.queue.happened(event, framework.NewNodeInfo(node))
}

func (s *scheduler) nodeGone(node *corev1.Node) {
	s.cache.mu.Lock()
	s.cache.removeNode(node.Name)
	s.cache.mu.Unlock()
}

// podChanged reports a change that plugins may look at.
func podChanged(old, pod *corev1.Pod) bool {
	return !maps.Equal(old.Labels, pod.Labels) || !equality.Semantic.DeepEqual(&old.Spec, &pod.Spec)
}

// resized reports that the node has granted other resources than before (in-place resize).
func resized(old, pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if i >= len(old.Status.ContainerStatuses) {
			return false // the first status of a pod confirms what its spec says
		}
		a, b := &old.Status.ContainerStatuses[i], &pod.Status.ContainerStatuses[i]
		if !equality.Semantic.DeepEqual(a.AllocatedResources, b.AllocatedResources) || !equality.Semantic.DeepEqual(a.Resources, b.Resources) {
			return true
		}
	}
	return false
}

// nodeChanged reports a change that plugins may look at; heartbeats are none.
func nodeChanged(old, node *corev1.Node) bool {
	return old.Spec.Unschedulable != node.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) ||
		!maps.Equal(old.Labels, node.Labels) || !maps.Equal(old.Annotations, node.Annotations) ||
		!equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) ||
		!equality.Semantic.DeepEqual(old.Status.Images, node.Status.Images) ||
		old.UID != node.UID
}
