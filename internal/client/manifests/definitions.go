package manifests

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Definition is the kind of CustomResourceDefinitions.
const Definition = "CustomResourceDefinition"

var definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// IsDefinition reports whether an object is a CustomResourceDefinition.
func IsDefinition(o *unstructured.Unstructured) bool {
	return o.GetKind() == Definition && o.GroupVersionKind().Group == definitionsResource.Group
}

// InstallDefinitions applies definitions as a field manager, and returns when all are established and their kinds
// can be used. It waits until ctx ends.
func InstallDefinitions(ctx context.Context, client dynamic.Interface, manager string,
	crds []*unstructured.Unstructured) error {
	definitions := client.Resource(definitionsResource)
	applied := make([]*unstructured.Unstructured, len(crds))
	options := metav1.ApplyOptions{FieldManager: manager, Force: true}
	for i, crd := range crds {
		var err error
		applied[i], err = definitions.Apply(ctx, crd.GetName(), crd, options)
		if err != nil {
			return fmt.Errorf("install %s %s: %w", Definition, crd.GetName(), err)
		}
	}
	for _, crd := range applied {
		if err := awaitEstablished(ctx, definitions, crd); err != nil {
			return fmt.Errorf("wait for %s %s: %w", Definition, crd.GetName(), err)
		}
	}
	return nil
}

// awaitEstablished waits for an applied definition. It returns an error if the names are taken by another
// definition.
func awaitEstablished(ctx context.Context, definitions dynamic.ResourceInterface,
	crd *unstructured.Unstructured) error {
	changes, err := definitions.Watch(ctx, metav1.ListOptions{ResourceVersion: crd.GetResourceVersion(),
		FieldSelector: fields.OneTermEqualSelector("metadata.name", crd.GetName()).String()})
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		if established(crd) {
			return nil
		}
		if c := condition(crd, "NamesAccepted"); c["status"] == "False" {
			return fmt.Errorf("its names are not accepted: %v", c["message"])
		}
		change, open := <-changes.ResultChan()
		if !open {
			return errors.Join(errors.New("the watch ended"), ctx.Err())
		}
		now, ok := change.Object.(*unstructured.Unstructured)
		if !ok {
			return apierrors.FromObject(change.Object)
		}
		crd = now
	}
}

func established(crd *unstructured.Unstructured) bool {
	return condition(crd, "Established")["status"] == "True"
}

// condition returns a definition's condition of a type, empty if there is none.
func condition(crd *unstructured.Unstructured, kind string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}
