package kubectllite

import (
	"fmt"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/csaupgrade"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/scheme"
	kubectlutil "k8s.io/kubectl/pkg/util"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// lastApplied is the annotation that holds the document of the last client-side apply.
const lastApplied = corev1.LastAppliedConfigAnnotation

// retryPause is the delay before an object that keeps changing is patched again.
const retryPause = time.Second

// applyPatch makes the patch of a client-side apply. It compares the document of the last apply, the document of this
// one and the current object. The patch sets the fields of the document, removes the fields that the document no longer
// has, and leaves all others alone.
type applyPatch struct {
	helper    *resource.Helper
	info      *resource.Info
	modified  []byte
	overwrite bool
}

// send computes and sends the patch. After a conflict with another client it reads the object and tries again. With
// pretend the patch is only applied locally.
func (p *applyPatch) send(pretend bool) (patch []byte, result runtime.Object, err error) {
	current := p.info.Object
	for attempt := 0; ; attempt++ {
		patch, result, err = p.sendOnce(current, pretend)
		if !apierrors.IsConflict(err) || attempt == 5 {
			return patch, result, err
		}
		if attempt > 0 {
			time.Sleep(retryPause)
		}
		if current, err = p.helper.Get(p.info.Namespace, p.info.Name); err != nil {
			return nil, nil, err
		}
	}
}

// sendOnce computes the patch of one version of the object and sends it.
func (p *applyPatch) sendOnce(current runtime.Object, pretend bool) ([]byte, runtime.Object, error) {
	now, err := runtime.Encode(unstructured.UnstructuredJSONScheme, current)
	if err != nil {
		return nil, nil, fmt.Errorf("serializing current configuration from:\n%v\nfor: %w", current, err)
	}
	original, err := kubectlutil.GetOriginalConfiguration(current)
	if err != nil {
		return nil, nil, fmt.Errorf("retrieving original configuration from:\n%v\nfor: %w", current, err)
	}
	kind, patch, err := p.compute(original, now)
	if err != nil {
		return nil, nil, fmt.Errorf("creating patch with:\noriginal:\n%s\nmodified:\n%s\ncurrent:\n%s\nfor: %w",
			original, p.modified, now, err)
	}
	if string(patch) == "{}" {
		return patch, current, nil
	}
	if pretend {
		obj, err := p.carryOut(kind, now, patch)
		return patch, obj, err
	}
	obj, err := p.helper.Patch(p.info.Namespace, p.info.Name, kind, patch, nil)
	if err != nil {
		return patch, nil, cmdutil.AddSourceToErr("patching", p.info.Source, err)
	}
	return patch, obj, nil
}

// compute returns a strategic merge patch for kinds with a Go type in this binary, and a JSON merge patch, which
// replaces lists as a whole, for all others.
func (p *applyPatch) compute(original, current []byte) (types.PatchType, []byte, error) {
	typed, err := scheme.Scheme.New(p.info.Mapping.GroupVersionKind)
	if runtime.IsNotRegisteredError(err) {
		patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(original, p.modified, current,
			mergepatch.RequireKeyUnchanged("apiVersion"), mergepatch.RequireKeyUnchanged("kind"),
			mergepatch.RequireMetadataKeyUnchanged("name"))
		if mergepatch.IsPreconditionFailed(err) {
			err = fmt.Errorf("At least one of apiVersion, kind and name was changed") //nolint:staticcheck // kubectl's words
		}
		return types.MergePatchType, patch, err
	}
	if err != nil {
		return "", nil, err
	}
	fields, err := strategicpatch.NewPatchMetaFromStruct(typed)
	if err != nil {
		return "", nil, err
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(original, p.modified, current, fields, p.overwrite)
	return types.StrategicMergePatchType, patch, err
}

// carryOut applies the patch locally, as a server would.
func (p *applyPatch) carryOut(kind types.PatchType, current, patch []byte) (runtime.Object, error) {
	var patched []byte
	var err error
	if kind == types.StrategicMergePatchType {
		typed, _ := scheme.Scheme.New(p.info.Mapping.GroupVersionKind)
		patched, err = strategicpatch.StrategicMergePatch(current, patch, typed)
	} else {
		patched, err = jsonpatch.MergePatch(current, patch)
	}
	if err != nil {
		return nil, fmt.Errorf("applying patch locally: %w", err)
	}
	return runtime.Decode(unstructured.UnstructuredJSONScheme, patched)
}

// adoptClientSideFields makes this manager the owner of the fields that client-side applies have set. Otherwise a
// server-side apply could never remove such a field: the former manager would still own it.
func (o *applyOptions) adoptClientSideFields(info *resource.Info) (moved bool, err error) {
	accessor, err := meta.Accessor(info.Object)
	if err != nil {
		return false, err
	}
	// Any manager that set the annotation in an ordinary update applied client-side.
	former := sets.New[string]()
	annotation := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "annotations", lastApplied))
	for _, owner := range csaupgrade.FindFieldsOwners(accessor.GetManagedFields(), metav1.ManagedFieldsOperationUpdate,
		annotation) {
		former.Insert(owner.Manager)
	}
	if former.Len() == 0 {
		return false, nil
	}
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(info.Object, former, o.fieldManager)
	if err != nil || patch == nil {
		return false, err
	}
	obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.JSONPatchType, patch, nil)
	if err != nil {
		return false, err
	}
	return true, info.Refresh(obj, true)
}
