package storagemigration

import (
	"context"
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// definitions is the resource of CustomResourceDefinitions.
var definitions = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// definition returns the CustomResourceDefinition of a resource, or nil if the resource is built in.
func (m *migrator) definition(ctx context.Context, gr metav1.GroupResource) (
	*apiextensionsv1.CustomResourceDefinition, error) {
	doc, err := m.env.Client().Discovery().RESTClient().Get().
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", gr.Resource+"."+gr.Group).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err == nil {
		err = json.Unmarshal(doc, crd)
	}
	return crd, err
}

// begin sets the condition StorageMigrating of the resource's definition to True, with the definition's generation.
func (m *migrator) begin(ctx context.Context, gr metav1.GroupResource, migration string) error {
	crd, err := m.definition(ctx, gr)
	if crd == nil || err != nil {
		return err
	}
	return m.applyDefinitionStatus(ctx, crd, apiextensionsv1.ConditionTrue, "MigrationRunning",
		fmt.Sprintf("Migration %s is running", migration), nil)
}

// end sets the condition StorageMigrating of the resource's definition to False. If the definition has not changed
// since begin, all objects are in the storage version, and end reduces the stored versions to it.
func (m *migrator) end(ctx context.Context, gr metav1.GroupResource) error {
	crd, err := m.definition(ctx, gr)
	if crd == nil || err != nil {
		return err
	}
	message := "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
	var stored []string
	if migratedAt(crd) == crd.Generation {
		message = "The migration has succeeded and the stored versions have been updated"
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				stored = []string{v.Name}
			}
		}
	}
	return m.applyDefinitionStatus(ctx, crd, apiextensionsv1.ConditionFalse, "MigrationSucceeded", message, stored)
}

// migratedAt returns the generation that the definition had when its migration began.
func migratedAt(crd *apiextensionsv1.CustomResourceDefinition) int64 {
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.StorageMigrating {
			return c.ObservedGeneration
		}
	}
	return 0
}

// applyDefinitionStatus applies the condition StorageMigrating and, unless stored is nil, the stored versions. It fails
// with a conflict if the definition has changed since it was read.
func (m *migrator) applyDefinitionStatus(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition,
	status apiextensionsv1.ConditionStatus, reason, message string, stored []string) error {
	applied := map[string]any{
		"apiVersion": definitions.GroupVersion().String(), "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": crd.Name, "uid": crd.UID, "resourceVersion": crd.ResourceVersion},
	}
	state := map[string]any{"conditions": []any{map[string]any{
		"type": apiextensionsv1.StorageMigrating, "status": status, "reason": reason, "message": message,
		"lastTransitionTime": metav1.NewTime(m.env.Clock.Now()), "observedGeneration": crd.Generation,
	}}}
	if stored != nil {
		state["storedVersions"] = stored
	}
	applied["status"] = state
	patch, err := json.Marshal(applied)
	if err != nil {
		return err
	}
	_, err = m.env.Metadata().Resource(definitions).Patch(ctx, crd.Name, types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: "migration-runner-controller", Force: new(true)}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
