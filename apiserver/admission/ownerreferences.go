package admission

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// ownerReferences keeps users from making the garbage collector delete, or keep, objects that they may not delete
// or keep themselves.
type ownerReferences struct{ cluster Cluster }

func newOwnerReferences(env *Env) (Plugin, error) { return &ownerReferences{env.Cluster}, nil }

func (p *ownerReferences) Validate(ctx context.Context, a *Attributes) error {
	var had []metav1.OwnerReference
	if a.Old != nil {
		had = a.Old.GetOwnerReferences()
	}
	wants := a.Object.GetOwnerReferences()
	if len(had) == len(wants) && (len(had) == 0 || equality.Semantic.DeepEqual(had, wants)) {
		return nil
	}
	// The creator of an object may give it owners, as it may give it finalizers.
	ok, reason, err := p.cluster.Authorize(ctx, a.User, "delete", a.Resource, a.Subresource, a.Namespace, a.Name)
	if !ok {
		return a.Forbid(fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err))
	}
	for _, ref := range wants {
		if !blocks(ref) || slices.ContainsFunc(had, func(h metav1.OwnerReference) bool {
			return h.UID == ref.UID && blocks(h)
		}) {
			continue
		}
		if err := p.mayBlock(ctx, a, ref); err != nil {
			return a.Forbid(err)
		}
	}
	return nil
}

func blocks(ref metav1.OwnerReference) bool { return ptr.Deref(ref.BlockOwnerDeletion, false) }

// mayBlock checks that the user may set finalizers on the owner: blocking its deletion has the same effect.
func (p *ownerReferences) mayBlock(ctx context.Context, a *Attributes, ref metav1.OwnerReference) error {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return fmt.Errorf("cannot set blockOwnerDeletion to true because the API version %q is malformed: %w",
			ref.APIVersion, err)
	}
	resource, ok := p.cluster.Kind(gv.WithKind(ref.Kind))
	if !ok {
		return fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for "+
			"APIVersion %v Kind %v", ref.APIVersion, ref.Kind)
	}
	ok, reason, err := p.cluster.Authorize(ctx, a.User, "update", resource, "finalizers", a.Namespace, ref.Name)
	if !ok {
		return fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set "+
			"finalizers on: %v, %v", reason, err)
	}
	return nil
}
