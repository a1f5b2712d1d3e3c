package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// review completes the registration of a create-only kind: one whose objects are questions,
// which the server answers and does not keep.
func review(r Resource) *Resource {
	r.Review = true
	r.NoVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	r.Columns = []metav1.TableColumnDefinition{nameColumn, ageColumn}
	r.Cells = func(obj Object) []any { return []any{obj.GetName(), age(obj.GetCreationTimestamp())} }
	return &r
}
