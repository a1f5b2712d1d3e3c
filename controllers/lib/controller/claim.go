package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Claimer decides which objects belong to an owner.
type Claimer struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Live reads the owner from the API server, bypassing the cache. Claim adopts no objects for an owner that
	// is being deleted, or has been replaced by another object of its name: the adoption would race with the
	// garbage collector.
	Live func(ctx context.Context) (metav1.Object, error)
	// Finalizers, if any, are added to adopted objects.
	Finalizers []string
	// Patch applies a strategic merge patch to one of the objects.
	Patch func(ctx context.Context, obj metav1.Object, patch []byte) error
}

// Claim returns the objects that belong to the owner. It adopts objects that match the selector and have no
// controller, and releases objects of the owner that no longer match. The result is valid even if err reports
// that some objects could not be patched.
func Claim[T metav1.Object](ctx context.Context, c Claimer, objects []T) ([]T, error) {
	var claimed []T
	var errs []error
	mayAdopt := sync.OnceValue(func() error { return c.mayAdopt(ctx) })
	for _, obj := range objects {
		mine, err := c.claim(ctx, obj, mayAdopt)
		if err != nil {
			errs = append(errs, err)
		}
		if mine {
			claimed = append(claimed, obj)
		}
	}
	return claimed, errors.Join(errs...)
}

func (c Claimer) claim(ctx context.Context, obj metav1.Object, mayAdopt func() error) (bool, error) {
	matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
	ref := metav1.GetControllerOfNoCopy(obj)
	ownerGoes := c.Owner.GetDeletionTimestamp() != nil
	switch {
	case ref != nil && ref.UID != c.Owner.GetUID():
		return false, nil
	case ref != nil && matches:
		return true, nil
	case ref != nil:
		if ownerGoes {
			return false, nil
		}
		return false, c.release(ctx, obj)
	case !matches || ownerGoes || obj.GetDeletionTimestamp() != nil:
		return false, nil
	}
	if err := mayAdopt(); err != nil {
		return false, fmt.Errorf("cannot adopt %s: %w", KeyOf(obj), err)
	}
	err := c.Patch(ctx, obj, c.adoption(obj))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (c Claimer) mayAdopt(ctx context.Context) error {
	live, err := c.Live(ctx)
	if err != nil {
		return err
	}
	if live.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("the %s %s was replaced by another of its name", c.Kind.Kind, KeyOf(c.Owner))
	}
	if live.GetDeletionTimestamp() != nil {
		return fmt.Errorf("the %s %s is being deleted", c.Kind.Kind, KeyOf(c.Owner))
	}
	return nil
}

func (c Claimer) adoption(obj metav1.Object) []byte {
	return metadataPatch(obj, []any{metav1.NewControllerRef(c.Owner, c.Kind)}, c.Finalizers...)
}

func (c Claimer) release(ctx context.Context, obj metav1.Object) error {
	err := c.Patch(ctx, obj, metadataPatch(obj, []any{
		map[string]any{"$patch": "delete", "uid": c.Owner.GetUID()},
	}))
	// Invalid means that another object has this name now: the patch's uid is not that object's.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

// metadataPatch includes the object's uid, so that another object of the same name is never patched.
func metadataPatch(obj metav1.Object, ownerReferences []any, finalizers ...string) []byte {
	metadata := map[string]any{"uid": obj.GetUID(), "ownerReferences": ownerReferences}
	if len(finalizers) > 0 {
		metadata["finalizers"] = finalizers // merged with the object's other finalizers
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		panic(err) // strings and booleans only
	}
	return patch
}

// controllerIndex indexes objects by the uid of their controller, and orphans by namespace.
const controllerIndex = "controllerUID"

// IndexByController adds the index for OwnedOrOrphaned to an informer. It must be called before the informer
// starts; calling it again has no effect.
func IndexByController(informer cache.SharedIndexInformer) error {
	return index(informer, controllerIndex, func(o metav1.Object) []string {
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
			return []string{string(ref.UID)}
		}
		return []string{"orphan/" + o.GetNamespace()}
	})
}

// OwnedOrOrphaned returns the objects that owner controls, and the objects of its namespace that have no
// controller: the candidates for Claim.
func OwnedOrOrphaned[T any](informer cache.SharedIndexInformer, owner metav1.Object) ([]T, error) {
	return indexed[T](informer, controllerIndex, string(owner.GetUID()), "orphan/"+owner.GetNamespace())
}
