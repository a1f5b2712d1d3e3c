package diagnose

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Family is objects by the UID of their owner.
type Family map[types.UID][]*unstructured.Unstructured

// Owned sorts objects under their owners, siblings by kind and name.
func Owned(objects []*unstructured.Unstructured) Family {
	found := Family{}
	for _, obj := range objects {
		for _, owner := range obj.GetOwnerReferences() {
			found[owner.UID] = append(found[owner.UID], obj)
		}
	}
	for _, children := range found {
		slices.SortFunc(children, func(a, b *unstructured.Unstructured) int {
			return cmp.Or(strings.Compare(a.GetKind(), b.GetKind()), strings.Compare(a.GetName(), b.GetName()))
		})
	}
	return found
}

// Visited are the objects that a walk has seen.
type Visited map[identity]bool

// identity tells an object from every other one that exists at the same time.
type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

func identityOf(obj *unstructured.Unstructured) identity {
	return identity{obj.GroupVersionKind().GroupKind(), obj.GetNamespace(), obj.GetName()}
}

// InspectAll returns an object with all that it owns, and what is wrong with them. It skips visited objects: an
// object may have several owners, and owner references may form a cycle. now is by the clock of the cluster.
func InspectAll(root *unstructured.Unstructured, all Family, visited Visited, now time.Time) (
	objects []*unstructured.Unstructured, findings []Finding) {
	var visit func(obj *unstructured.Unstructured, past bool)
	visit = func(obj *unstructured.Unstructured, past bool) {
		if visited[identityOf(obj)] {
			return
		}
		visited[identityOf(obj)] = true
		if !past {
			objects, findings = append(objects, obj), append(findings, Inspect(obj, now)...)
		}
		past = past || isDone(obj) // how its pods ended on the way is history
		for _, child := range all[obj.GetUID()] {
			visit(child, past)
		}
	}
	visit(root, false)
	return objects, findings
}
