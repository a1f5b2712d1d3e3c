package apiextensions

import (
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/kit/defaults"
)

func setDefaults(crd *definition) {
	names := &crd.Spec.Names
	defaults.Set(&names.Singular, strings.ToLower(names.Kind))
	if names.Kind != "" {
		defaults.Set(&names.ListKind, names.Kind+"List")
	}
	defaults.SetPtr(&crd.Spec.Conversion,
		apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter})
	if w := crd.Spec.Conversion.Webhook; w != nil && w.ClientConfig != nil && w.ClientConfig.Service != nil {
		defaults.SetPtr(&w.ClientConfig.Service.Port, 443)
	}
	if len(crd.Status.StoredVersions) == 0 {
		storeVersion(crd)
	}
}

// storeVersion adds the storage version to status.storedVersions, since objects may be stored in it from now on. A
// version leaves this list only by a write to the status, after a client has migrated the objects.
func storeVersion(crd *definition) {
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			if !slices.Contains(crd.Status.StoredVersions, v.Name) {
				crd.Status.StoredVersions = append(crd.Status.StoredVersions, v.Name)
			}
			return
		}
	}
}

// terminate begins the deletion of a definition. Its finalizer keeps the definition until its objects are deleted. The
// condition has the time of the deletion.
func terminate(crd *definition) {
	if !slices.Contains(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
	}
	condition := apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Terminating,
		Status: apiextensionsv1.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"}
	if crd.DeletionTimestamp != nil {
		condition.LastTransitionTime = *crd.DeletionTimestamp
	}
	i := slices.IndexFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == condition.Type
	})
	if i < 0 {
		crd.Status.Conditions = append(crd.Status.Conditions, condition)
		return
	}
	is := &crd.Status.Conditions[i]
	if is.Status == condition.Status && !is.LastTransitionTime.IsZero() {
		condition.LastTransitionTime = is.LastTransitionTime
	}
	condition.ObservedGeneration = is.ObservedGeneration
	*is = condition
}
