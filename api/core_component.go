package api

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// componentStatuses tell whether the other parts of the control plane are well, as far as the server can see.
func componentStatuses() *Resource {
	return computed(Resource{
		Version: "v1", Kind: "ComponentStatus", Plural: "componentstatuses", ShortNames: []string{"cs"},
		New:         func() Object { return &corev1.ComponentStatus{} },
		NewList:     func() runtime.Object { return &corev1.ComponentStatusList{} },
		Deprecation: "v1 ComponentStatus is deprecated in v1.19+",

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Status", "string", "Status of the component conditions"),
			column("Message", "string", "Message of the component conditions"),
			column("Error", "string", "Error of the component conditions"),
		},
		Cells: row(func(c *corev1.ComponentStatus) []any {
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
	})
}

// bindings put pods on nodes, as the pods' subresource of that name does. It is the older way.
func bindings() *Resource {
	return review(Resource{
		Version: "v1", Kind: "Binding", Plural: "bindings", Namespaced: true,
		New: func() Object { return &corev1.Binding{} },
	})
}
