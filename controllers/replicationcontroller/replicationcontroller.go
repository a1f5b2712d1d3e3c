// Package replicationcontroller runs the number of pods that a ReplicationController specifies. It converts
// ReplicationControllers to ReplicaSets, which behave the same, and uses the package replicaset.
package replicationcontroller

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/replicaset"
)

// New returns the controller. Its keys are ReplicationControllers.
func New(env *controller.Env) (*controller.Controller, error) {
	rcs := env.Informers.Core().V1().ReplicationControllers()
	c, h, err := replicaset.NewFor(env, "replicationcontroller", "replication-controller",
		source{env.Client, rcs.Lister()})
	if err != nil {
		return nil, err
	}
	controller.Watch(c, rcs.Informer(), controller.Handler[*corev1.ReplicationController]{
		Add:    func(rc *corev1.ReplicationController) { h.Add(asReplicaSet(rc)) },
		Update: func(old, rc *corev1.ReplicationController) { h.Update(asReplicaSet(old), asReplicaSet(rc)) },
		Delete: func(rc *corev1.ReplicationController) { h.Delete(asReplicaSet(rc)) },
	})
	return c, nil
}

// source provides ReplicationControllers as ReplicaSets.
type source struct {
	client func() kubernetes.Interface
	lister listers.ReplicationControllerLister
}

var kind = corev1.SchemeGroupVersion.WithKind("ReplicationController")

func (source) Kind() schema.GroupVersionKind { return kind }

func (s source) Get(namespace, name string) (*appsv1.ReplicaSet, error) {
	rc, err := s.lister.ReplicationControllers(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return asReplicaSet(rc), nil
}

func (s source) List(namespace string) ([]*appsv1.ReplicaSet, error) {
	all, err := s.lister.ReplicationControllers(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	sets := make([]*appsv1.ReplicaSet, len(all))
	for i, rc := range all {
		sets[i] = asReplicaSet(rc)
	}
	return sets, nil
}

func (s source) Live(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	rc, err := s.client().CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return asReplicaSet(rc), nil
}

func (s source) UpdateStatus(ctx context.Context, rs *appsv1.ReplicaSet) error {
	rc := &corev1.ReplicationController{ObjectMeta: rs.ObjectMeta}
	// The status is written with an object whose spec has only the fields that a server may validate.
	rc.Spec.Replicas, rc.Spec.MinReadySeconds, rc.Spec.Template = rs.Spec.Replicas, rs.Spec.MinReadySeconds,
		&rs.Spec.Template
	rc.Spec.Selector = rs.Spec.Selector.MatchLabels
	rc.Status = corev1.ReplicationControllerStatus{
		Replicas: rs.Status.Replicas, FullyLabeledReplicas: rs.Status.FullyLabeledReplicas,
		ReadyReplicas:     rs.Status.ReadyReplicas,
		AvailableReplicas: rs.Status.AvailableReplicas, ObservedGeneration: rs.Status.ObservedGeneration,
	}
	for _, c := range rs.Status.Conditions {
		rc.Status.Conditions = append(rc.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	_, err := s.client().CoreV1().ReplicationControllers(rs.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
	return err
}

// asReplicaSet converts rc. The result shares memory with rc, so the caller must not change it. It keeps the kind of
// rc, so that events name the ReplicationController.
func asReplicaSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: rc.ObjectMeta}
	rs.SetGroupVersionKind(kind)
	rs.Spec = appsv1.ReplicaSetSpec{Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
		Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	rs.Status = appsv1.ReplicaSetStatus{
		Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
		ReadyReplicas:     rc.Status.ReadyReplicas,
		AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		})
	}
	return rs
}
