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

// Copy copies these parts of the metadata from src to dst.
func (m Metadata) Copy(dst, src metav1.Object) {
	if m&Labels != 0 {
		dst.SetLabels(src.GetLabels())
	}
	if m&Annotations != 0 {
		dst.SetAnnotations(src.GetAnnotations())
	}
	if m&Finalizers != 0 {
		dst.SetFinalizers(src.GetFinalizers())
	}
	if m&OwnerReferences != 0 {
		dst.SetOwnerReferences(src.GetOwnerReferences())
	}
}

// Fields returns the JSON names of the parts.
func (m Metadata) Fields() []string {
	var names []string
	for i, name := range []string{"labels", "annotations", "finalizers", "ownerReferences"} {
		if m&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
