package apps

import (
	"bytes"
	"encoding/json"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func controllerRevisions() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "apps", Version: "v1", Kind: "ControllerRevision", Plural: "controllerrevisions", Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &appsv1.ControllerRevision{} },
			NewList: func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		},
		Strategy: api.Strategy{
			Validate: api.Check(func(r *appsv1.ControllerRevision) field.ErrorList {
				return validate.NonNegative(field.NewPath("revision"), r.Revision)
			}),
			ValidateCreate: api.Check(validateRevisionData),
			ValidateUpdate: api.CheckUpdate(func(r, old *appsv1.ControllerRevision) field.ErrorList {
				if sameDocument(r.Data.Raw, old.Data.Raw) {
					return nil
				}
				return validate.Unchanged(r.Data, old.Data, field.NewPath("data"))
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Controller", "string", "Controller of the object"),
				table.Column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
				table.Age,
			},
			Cells: api.Row(func(r *appsv1.ControllerRevision) []any {
				controller := table.None
				if owner := metav1.GetControllerOf(r); owner != nil {
					controller = table.OwnerOf(owner)
				}
				return []any{r.Name, controller, r.Revision, table.AgeOf(r.CreationTimestamp)}
			}),
		},
	}
}

// sameDocument reports whether two JSON documents have the same value, in any notation.
func sameDocument(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var one, other any
	return utiljson.Unmarshal(a, &one) == nil && utiljson.Unmarshal(b, &other) == nil && reflect.DeepEqual(one, other)
}

func validateRevisionData(r *appsv1.ControllerRevision) field.ErrorList {
	path := field.NewPath("data")
	if r.Data.Raw == nil {
		return field.ErrorList{field.Required(path, "data is mandatory")}
	}
	var data any
	if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
		return field.ErrorList{field.Invalid(path, validate.Omitted, "error parsing data: "+err.Error())}
	}
	if data == nil {
		return field.ErrorList{field.Required(path, "data is mandatory")}
	}
	if _, ok := data.(map[string]any); !ok {
		return field.ErrorList{field.Required(path, "data must be a valid JSON object")}
	}
	return nil
}
