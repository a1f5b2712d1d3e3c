package api_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// Any Go type that is an Object can be the type of a kind. This one reuses ConfigMap's.
type ship = corev1.ConfigMap

// A kind is a value. A server with it in its registry routes, stores and lists its objects.
func ships() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "sea.example.com", Version: "v1", Kind: "Ship", Plural: "ships", ShortNames: []string{"sh"},
			Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &ship{} },
			NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		},
		Strategy: api.Strategy{
			Default: api.Typed(func(s *ship) {
				if s.Data == nil {
					s.Data = map[string]string{}
				}
				rig := s.Data["rig"]
				defaults.Set(&rig, "sloop")
				s.Data["rig"] = rig
			}),
			Validate: api.Check(func(s *ship) field.ErrorList {
				return validate.OneOf(field.NewPath("data", "rig"), s.Data["rig"], "sloop", "ketch")
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.Column("Rig", "string", "The ship's rig.")},
			Cells:   api.Row(func(s *ship) []any { return []any{s.Name, s.Data["rig"]} }),
		},
	}
}

func Example() {
	registry := api.NewRegistry(ships())

	// A server finds the kind by the resource name in a request's path and calls its functions in this order.
	r := registry.Snapshot().Resource(schema.GroupVersionResource{
		Group: "sea.example.com", Version: "v1", Resource: "ships",
	})
	obj := r.New()
	obj.SetName("dawn-treader")
	r.Default(obj)
	fmt.Println(r.GVK().Kind, r.Validate(obj).ToAggregate(), r.Cells(obj))

	obj.(*ship).Data["rig"] = "raft"
	fmt.Println(r.Validate(obj).ToAggregate())
	// Output:
	// Ship <nil> [dawn-treader sloop]
	// data.rig: Unsupported value: "raft": supported values: "sloop", "ketch"
}
