package fieldmanager

import (
	"fmt"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coxswain-dev/coxswain/api"
)

// The only field of a Scale represents the object's replicas and has the same owners. Kubernetes' library
// translates between the two. In both directions it leaves out the time of a new owner, so such entries come first.

// scaleKind is the part of a registration that is needed to apply a Scale.
var scaleKind = &api.Resource{
	Names: api.Names{
		Group: "autoscaling", Version: "v1", Kind: "Scale", Plural: "scales", Namespaced: true,
	},
	Storage: api.Storage{
		New: func() api.Object {
			return &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: "autoscaling/v1"}}
		},
		NewList: func() runtime.Object { return &metav1.List{} },
	},
}

// replicasPaths returns the path of the replicas for each version of a kind, or nil for a version without /scale.
func replicasPaths(kinds *api.Snapshot, res *api.Resource) managedfields.ResourcePathMappings {
	paths := managedfields.ResourcePathMappings{}
	for _, version := range allVersions(Versions(kinds, res), res) {
		var path fieldpath.Path
		if version.Scale != nil {
			for _, name := range version.Scale.ReplicasPath() {
				path = append(path, fieldpath.FieldNameElement(name))
			}
		}
		paths[version.GroupVersion().String()] = path
	}
	return paths
}

// OwnersOfScale translates the owners of an object's replicas to the owners of its Scale and back.
func OwnersOfScale(kinds *api.Snapshot, res *api.Resource, obj api.Object) *managedfields.ScaleHandler {
	return managedfields.NewScaleHandler(obj.GetManagedFields(), res.GroupVersion(), replicasPaths(kinds, res))
}

// UpdateScale returns the managedFields of an object after its Scale has changed from was to is.
func UpdateScale(owners *managedfields.ScaleHandler, was, is *autoscalingv1.Scale, w Writer) (
	[]metav1.ManagedFieldsEntry, error) {
	entries, err := owners.ToSubresource()
	if err != nil {
		return nil, fmt.Errorf("translate the owners of a Scale: %w", err)
	}
	if len(entries) > 0 { // replicas without an owner stay without one
		w.APIVersion = scaleKind.GroupVersion().String()
		changed := changes(objectShape(reflect.TypeOf(is), false), was, is)
		defer changed.release()
		entries = own(entries, changed, nil, w)
	}
	return OwnersByScale(owners, entries)
}

// OwnersByScale returns the managedFields of an object with the given entries in its Scale.
func OwnersByScale(owners *managedfields.ScaleHandler, entries []metav1.ManagedFieldsEntry) (
	[]metav1.ManagedFieldsEntry, error) {
	entries, err := owners.ToParent(entries)
	if err != nil {
		return nil, fmt.Errorf("translate the owners of a Scale: %w", err)
	}
	for i := range entries {
		entries[i].FieldsV1 = &metav1.FieldsV1{Raw: htmlSafe(entries[i].FieldsV1.GetRawBytes())}
	}
	return entries, nil
}
