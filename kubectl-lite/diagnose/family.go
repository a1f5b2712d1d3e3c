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

// Family maps the UID of an owner to its objects.
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

// identity identifies an object among all that exist at the same time.
type identity struct {
	kind            schema.GroupKind
	namespace, name string
}

func identityOf(obj *unstructured.Unstructured) identity {
	return identity{obj.GroupVersionKind().GroupKind(), obj.GetNamespace(), obj.GetName()}
}

// InspectAll returns an object with its descendants, and their faults. It skips visited objects, because an object may
// have several owners, and owner references may form a cycle. It skips the descendants of an object that is done: the
// failed pods of a complete Job do not matter any more. now is the time by the clock of the cluster.
func InspectAll(root *unstructured.Unstructured, all Family, visited Visited, now time.Time) (
	objects []*unstructured.Unstructured, findings []Finding) {
	var visit func(obj *unstructured.Unstructured, done bool)
	visit = func(obj *unstructured.Unstructured, done bool) {
		if visited[identityOf(obj)] {
			return
		}
		visited[identityOf(obj)] = true
		if !done {
			objects, findings = append(objects, obj), append(findings, Inspect(obj, now)...)
		}
		done = done || isDone(obj)
		for _, child := range all[obj.GetUID()] {
			visit(child, done)
		}
	}
	visit(root, false)
	return objects, findings
}
