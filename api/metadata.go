package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Metadata is a set of parts of an object's metadata that clients may write.
type Metadata uint8

// The parts of the metadata that clients write.
const (
	Labels Metadata = 1 << iota
	Annotations
	Finalizers
	OwnerReferences

	AllMetadata = Labels | Annotations | Finalizers | OwnerReferences
)

// Copy sets the parts of to's metadata to from's.
func (m Metadata) Copy(to, from metav1.Object) {
	if m&Labels != 0 {
		to.SetLabels(from.GetLabels())
	}
	if m&Annotations != 0 {
		to.SetAnnotations(from.GetAnnotations())
	}
	if m&Finalizers != 0 {
		to.SetFinalizers(from.GetFinalizers())
	}
	if m&OwnerReferences != 0 {
		to.SetOwnerReferences(from.GetOwnerReferences())
	}
}

// Fields are the parts' names in JSON.
func (m Metadata) Fields() []string {
	var names []string
	for i, name := range []string{"labels", "annotations", "finalizers", "ownerReferences"} {
		if m&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
