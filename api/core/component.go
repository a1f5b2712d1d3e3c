package core

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/table"
)

// componentStatuses returns the kind of objects that report the health of the other parts of the control plane, as far
// as the server can see it.
func componentStatuses() *api.Resource {
	return api.VirtualOf(api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "ComponentStatus", Plural: "componentstatuses", ShortNames: []string{"cs"},
			Deprecation: "v1 ComponentStatus is deprecated in v1.19+",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.ComponentStatus{} },
			NewList: func() runtime.Object { return &corev1.ComponentStatusList{} },
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Status", "string", "Status of the component conditions"),
				table.Column("Message", "string", "Message of the component conditions"),
				table.Column("Error", "string", "Error of the component conditions"),
			},
			Cells: api.Row(func(c *corev1.ComponentStatus) []any {
				for _, condition := range c.Conditions {
					if condition.Type != corev1.ComponentHealthy {
						continue
					}
					if condition.Status == corev1.ConditionTrue {
						return []any{c.Name, "Healthy", condition.Message, condition.Error}
					}
					return []any{c.Name, "Unhealthy", condition.Message, condition.Error}
				}
				return []any{c.Name, "Unknown", "", ""}
			}),
		},
	})
}

// bindings returns the kind of objects that assign pods to nodes. It is the older form of the pods' subresource
// binding.
func bindings() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names:   api.Names{Version: "v1", Kind: "Binding", Plural: "bindings", Namespaced: true},
		Storage: api.Storage{New: func() api.Object { return &corev1.Binding{} }},
	})
}
