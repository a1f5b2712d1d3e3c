package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/api"
)

// maxPatchOperations is how many operations one JSON patch may have, as in kube-apiserver.
const maxPatchOperations = 10000

func init() {
	// A copy operation may double a document; this bounds what a patch may make of one.
	jsonpatch.AccumulatedCopySizeLimit = maxBody
}

// patcher makes the new document from the old one.
type patcher func(doc []byte) ([]byte, error)

// patch answers a PATCH of an object or of a subresource.
func (s *Server) patch(w http.ResponseWriter, r *request) error {
	kind := types.PatchType(r.contentType())
	if !slices.Contains(patchTypes, string(kind)) {
		return unsupportedMedia(patchTypes)
	}
	if err := checkPatchOptions(r, kind); err != nil {
		return err
	}
	if kind == types.ApplyYAMLPatchType || kind == types.ApplyCBORPatchType {
		return s.apply(w, r, kind)
	}
	apply, err := s.patcher(w, r, kind)
	if err != nil {
		return err
	}
	if r.subresource == "scale" {
		return s.updateScale(w, r, apply)
	}
	written, err := s.modify(r.Context(), r, func(old api.Object) (api.Object, error) {
		r.warnings = nil
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		obj, err := patched(r, old, apply)
		if err != nil {
			return nil, err
		}
		if err := place(r, obj); err != nil {
			return nil, err
		}
		return s.replace(r, obj, old, obj.GetResourceVersion())
	})
	if err != nil {
		return err
	}
	return s.writeObject(w, r, http.StatusOK, written)
}

// patched is the object that the patch makes of old, as it is stored.
func patched(r *request, old api.Object, apply patcher) (api.Object, error) {
	if r.res.View == nil && len(r.strict) == 0 {
		if obj, ok := patchNamed(old, r.stored.JSON, r.named, apply); ok {
			return obj, nil
		}
	}
	before, err := shown(r.res, r.stored)
	if err != nil {
		return nil, err
	}
	doc, err := apply(before.JSON)
	if err != nil {
		return nil, err
	}
	obj := r.res.New()
	if err := decodePatched(r, r.res.GVK(), doc, obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(r.res.GVK())
	return asStored(r.res, obj)
}

// patchTypes are the Content-Types of a PATCH.
var patchTypes = []string{
	string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType),
	string(types.ApplyYAMLPatchType), string(types.ApplyCBORPatchType),
}

// patcher reads the request's patch.
// https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
func (s *Server) patcher(w http.ResponseWriter, r *request, kind types.PatchType) (patcher, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	if err := checkDepth(body); err != nil {
		return nil, err
	}
	if !json.Valid(body) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	if kind == types.JSONPatchType {
		return jsonPatch(r, body)
	}
	if r.strict, err = kjson.UnmarshalStrict(body, &map[string]any{}); err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	r.named = namedBy(body)
	if kind == types.MergePatchType {
		return func(doc []byte) ([]byte, error) {
			patched, err := mergePatch(doc, body)
			return patched, asBadPatch(err)
		}, nil
	}
	r.strategic = body
	return func(doc []byte) ([]byte, error) { return strategic(r, doc, body) }, nil
}

// jsonPatchOperation is what RFC 6902 knows in an operation.
type jsonPatchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func jsonPatch(r *request, body []byte) (patcher, error) {
	strict, err := kjson.UnmarshalStrict(body, &[]jsonPatchOperation{})
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	for _, err := range strict {
		r.strict = append(r.strict, fmt.Errorf("json patch %w", err))
	}
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if len(patch) > maxPatchOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(patch)))
	}
	return func(doc []byte) ([]byte, error) {
		patched, err := applyJSONPatch(patch, doc)
		if err != nil { // which says no more, as in kube-apiserver
			return nil, statusError(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the server rejected our request due to an error in our request")
		}
		return patched, nil
	}, nil
}

// applyJSONPatch is patch.Apply, which panics where an operation without a value meets what
// is no plain value: {"op":"test","path":""}.
func applyJSONPatch(patch jsonpatch.Patch, doc []byte) (patched []byte, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("applying a JSON patch: %v", fault)
		}
	}()
	return patch.Apply(doc)
}

// strategic merges lists by the keys that the Go type's tags name.
func strategic(r *request, doc, patch []byte) ([]byte, error) {
	var into any = r.res.New()
	if r.subresource == "scale" {
		into = newScale()
	}
	patched, err := strategicpatch.StrategicMergePatch(doc, patch, into)
	return patched, asBadPatch(err)
}

func asBadPatch(err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewBadRequest(err.Error())
}

// decodePatched reads the document that a patch has made. The patch itself may have been
// good: what is wrong with its result is Invalid, not a bad request.
func decodePatched(r *request, want schema.GroupVersionKind, doc []byte, into runtime.Object) error {
	strict, err := unmarshalStrict(doc, into)
	if err == nil && into.GetObjectKind().GroupVersionKind() != want {
		err = checkKind(want, doc)
	}
	if err == nil {
		refused := r.takeStrictErrors(slices.Concat(r.strict, strict))
		if len(refused) == 0 {
			return nil
		}
		err = fmt.Errorf("strict decoding error: %s", joinErrors(refused))
	}
	value := string(doc)
	if r.strategic != nil { // of which the patch is shown, not the result
		var patch map[string]any
		_ = unmarshal(r.strategic, &patch) // it was read before
		value = fmt.Sprintf("%+v", patch)
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), value, err.Error())})
}
