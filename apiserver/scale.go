package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

func newScale() *autoscalingv1.Scale {
	return &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: "autoscaling/v1"}}
}

// scaleOf shows an object as its autoscaling/v1 Scale.
func scaleOf(res *api.Resource, obj api.Object) *autoscalingv1.Scale {
	spec, status, selector := res.Scale.Get(obj)
	scale := newScale()
	scale.ObjectMeta = metav1.ObjectMeta{
		Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(),
		ResourceVersion: obj.GetResourceVersion(), CreationTimestamp: obj.GetCreationTimestamp(),
	}
	scale.Spec.Replicas = spec
	scale.Status = autoscalingv1.ScaleStatus{Replicas: status, Selector: selector}
	return scale
}

func (s *Server) getScale(w http.ResponseWriter, r *request, o *storage.Object) error {
	obj, err := decode(r.res, o)
	if err != nil {
		return err
	}
	return s.writeScale(w, r, obj)
}

func (s *Server) writeScale(w http.ResponseWriter, r *request, obj api.Object) error {
	scale := scaleOf(r.res, obj)
	addWarnings(w.Header(), r.warnings)
	var value any = scale
	version, kind := "autoscaling/v1", "Scale"
	switch r.out.view {
	case viewTable:
		value = scaleTable(scale)
	case viewPartial:
		value, version, kind = partialMetadata(scale), "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	body, err := json.Marshal(value)
	if r.out.media == mediaProtobuf {
		body, err = wrapProtobuf(version, kind, value)
	}
	if err != nil {
		return fmt.Errorf("encoding a scale: %w", err)
	}
	return s.writeBody(w, r.out, http.StatusOK, body)
}

// scaleTable is what kubectl get --subresource=scale prints.
func scaleTable(scale *autoscalingv1.Scale) *metav1.Table {
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
			Cells:  []any{scale.Name, scale.Spec.Replicas, scale.Status.Replicas, duration.HumanDuration(time.Since(scale.CreationTimestamp.Time))},
			Object: runtime.RawExtension{Object: partialMetadata(scale)},
		}},
	}
}

func partialMetadata(obj metav1.Object) *metav1.PartialObjectMetadata {
	partial := meta.AsPartialObjectMetadata(obj)
	partial.TypeMeta = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
	return partial
}

// updateScale sets the replicas of the object to those of the Scale that apply makes of
// the present one.
func (s *Server) updateScale(w http.ResponseWriter, r *request, apply patcher) error {
	written, err := s.modify(r.Context(), r, func(old api.Object) (api.Object, error) {
		doc, err := json.Marshal(scaleOf(r.res, old))
		if err != nil {
			return nil, fmt.Errorf("encoding a scale: %w", err)
		}
		if doc, err = apply(doc); err != nil {
			return nil, err
		}
		scale := newScale()
		read := decodeInto
		if r.verb == "patch" {
			read = decodePatched
		}
		if err := read(r, scale.GroupVersionKind(), doc, scale); err != nil {
			return nil, err
		}
		obj, err := s.scaled(r, old, scale)
		if err != nil {
			return nil, err
		}
		return obj, s.own(r, obj, old, nil)
	})
	if err != nil {
		return err
	}
	return s.getScale(w, r, written)
}

// scaled makes old with the replicas that the Scale wants.
func (s *Server) scaled(r *request, old api.Object, scale *autoscalingv1.Scale) (api.Object, error) {
	if scale.Spec.Replicas < 0 {
		return nil, apierrors.NewInvalid(scale.GroupVersionKind().GroupKind(), r.name, field.ErrorList{field.Invalid(
			field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")})
	}
	if err := checkScale(r, old, scale); err != nil {
		return nil, err
	}
	if err := checkRevision(r, old, scale.ResourceVersion); err != nil {
		return nil, err
	}
	if err := s.admitScale(r, scale, scaleOf(r.res, old)); err != nil {
		return nil, err
	}
	obj := old.DeepCopyObject().(api.Object)
	r.res.Scale.Set(obj, scale.Spec.Replicas)
	if r.res.Generation && !sameBesideMeta(obj, old) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	return obj, nil
}

// checkScale refuses a Scale that is another object's.
func checkScale(r *request, old api.Object, scale *autoscalingv1.Scale) error {
	if err := place(r, scale); err != nil {
		return err
	}
	if scale.UID != "" && scale.UID != old.GetUID() {
		return apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, old.GetUID()))
	}
	return nil
}
