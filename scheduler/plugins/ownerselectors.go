package plugins

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// ownerSelectors finds the pods to spread a pod with that has no constraints of its own: the pods of its Services
// and of its controller.
type ownerSelectors struct {
	services     corelisters.ServiceLister
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
}

func newOwnerSelectors(f informers.SharedInformerFactory) *ownerSelectors {
	return &ownerSelectors{
		services: f.Core().V1().Services().Lister(), controllers: f.Core().V1().ReplicationControllers().Lister(),
		replicaSets: f.Apps().V1().ReplicaSets().Lister(), statefulSets: f.Apps().V1().StatefulSets().Lister(),
	}
}

// of returns the combined selector of all of them; an empty one if there are none.
func (o *ownerSelectors) of(pod *corev1.Pod) labels.Selector {
	set := labels.Set{}
	services, _ := o.services.Services(pod.Namespace).List(labels.Everything()) // a lister has no errors
	for _, s := range services {
		if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			set = labels.Merge(set, s.Spec.Selector)
		}
	}
	selector := labels.NewSelector()
	if len(set) > 0 {
		selector = set.AsSelector()
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return selector
	}
	switch owner.Kind {
	case "ReplicationController":
		if rc, err := o.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			return and(selector, &metav1.LabelSelector{MatchLabels: rc.Spec.Selector})
		}
	case "ReplicaSet":
		if rs, err := o.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			return and(selector, rs.Spec.Selector)
		}
	case "StatefulSet":
		if ss, err := o.statefulSets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			return and(selector, ss.Spec.Selector)
		}
	}
	return selector
}

func and(selector labels.Selector, with *metav1.LabelSelector) labels.Selector {
	other, err := metav1.LabelSelectorAsSelector(with)
	if err != nil {
		return selector
	}
	requirements, _ := other.Requirements()
	return selector.Add(requirements...)
}
