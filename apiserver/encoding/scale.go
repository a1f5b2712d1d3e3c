package encoding

import (
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coxswain-dev/coxswain/api"
)

// NewScale returns an empty Scale.
func NewScale() *autoscalingv1.Scale {
	return &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: "autoscaling/v1"}}
}

// ScaleOf returns the autoscaling/v1 Scale of an object.
func ScaleOf(res *api.Resource, obj api.Object) *autoscalingv1.Scale {
	spec, status, selector := res.Scale.Get(obj)
	scale := NewScale()
	scale.ObjectMeta = metav1.ObjectMeta{
		Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
		ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
	}
	scale.Spec.Replicas = spec
	scale.Status = autoscalingv1.ScaleStatus{Replicas: status, Selector: selector}
	return scale
}

// Scale encodes a Scale in the client's view. Ages in a Table are relative to now.
func (o Output) Scale(scale *autoscalingv1.Scale, now time.Time) ([]byte, error) {
	switch o.View {
	case ViewTable:
		return o.Value("autoscaling/v1", "Scale", scaleTable(scale, now))
	case ViewPartial:
		return o.Value("meta.k8s.io/v1", "PartialObjectMetadata", PartialMetadata(scale))
	}
	return o.Value("autoscaling/v1", "Scale", scale)
}

// scaleTable returns the Table that kubectl get --subresource=scale prints.
func scaleTable(scale *autoscalingv1.Scale, now time.Time) *metav1.Table {
	return &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: scale.ResourceVersion},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name"},
			{Name: "Desired", Type: "integer"},
			{Name: "Available", Type: "integer"},
			{Name: "Age", Type: "string"},
		},
		Rows: []metav1.TableRow{{
			Cells: []any{scale.Name, scale.Spec.Replicas, scale.Status.Replicas,
				duration.HumanDuration(now.Sub(scale.CreationTimestamp.Time))},
			Object: runtime.RawExtension{Object: PartialMetadata(scale)},
		}},
	}
}

// PartialMetadata returns the metadata of an object as an object.
func PartialMetadata(obj metav1.Object) *metav1.PartialObjectMetadata {
	partial := meta.AsPartialObjectMetadata(obj)
	partial.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
	return partial
}
