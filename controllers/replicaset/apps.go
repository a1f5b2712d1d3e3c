package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
)

// apps is the Source for ReplicaSets.
type apps struct {
	client func() kubernetes.Interface
	lister appslisters.ReplicaSetLister
}

func (apps) Kind() schema.GroupVersionKind { return appsv1.SchemeGroupVersion.WithKind("ReplicaSet") }

func (a apps) Get(namespace, name string) (*appsv1.ReplicaSet, error) {
	return a.lister.ReplicaSets(namespace).Get(name)
}

func (a apps) List(namespace string) ([]*appsv1.ReplicaSet, error) {
	return a.lister.ReplicaSets(namespace).List(labels.Everything())
}

func (a apps) Live(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return a.client().AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (a apps) UpdateStatus(ctx context.Context, rs *appsv1.ReplicaSet) error {
	_, err := a.client().AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
	return err
}
