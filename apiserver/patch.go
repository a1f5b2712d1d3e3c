package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/patch"
	"github.com/coxswain-dev/coxswain/apiserver/query"
)

// patcher returns the patched document.
type patcher func(doc []byte) ([]byte, error)

// sentPatch is a patch that a client sent.
type sentPatch struct {
	apply patcher
	// strict are errors about unknown and duplicate fields of the patch itself.
	strict []error
	// strategic is the body of a strategic merge patch.
	strategic []byte
	// named are the members that the patch names, if it is a merge patch.
	named patch.Named
}

// patch answers a PATCH of an object or of a subresource.
func (s *Server) patch(w http.ResponseWriter, r *request) error {
	kind := types.PatchType(r.contentType())
	if accepted := patchTypesOf(r.res); !slices.Contains(accepted, string(kind)) {
		return encoding.UnsupportedMedia(accepted)
	}
	if err := query.CheckPatch(r.query, kind); err != nil {
		return err
	}
	if kind == types.ApplyYAMLPatchType || kind == types.ApplyCBORPatchType {
		return s.apply(w, r, kind)
	}
	p, err := readPatch(w, r, kind)
	if err != nil {
		return err
	}
	if r.subresource == "scale" {
		return s.patchScale(w, r, p)
	}
	wr := beginWrite(r, nil)
	written, err := s.modify(r.Context(), wr, func(old api.Object) (api.Object, error) {
		if err := r.Context().Err(); err != nil {
			return nil, err
		}
		obj, err := patched(wr, old, p)
		if err != nil {
			return nil, err
		}
		if err := place(r, obj); err != nil {
			return nil, err
		}
		return s.replace(r.Context(), wr, obj, old, obj.GetResourceVersion())
	})
	if err != nil {
		return err
	}
	return s.writeWritten(w, wr, http.StatusOK, written)
}

// patched returns the object that results from applying the patch to old.
func patched(wr *write, old api.Object, p *sentPatch) (api.Object, error) {
	res := wr.res
	if res.Conversion == nil && len(p.strict) == 0 {
		if obj, ok := p.named.Apply(old, wr.stored.JSON, p.apply); ok {
			return obj, nil
		}
	}
	before, err := encoding.ConvertDocument(wr.Context(), res, wr.stored)
	if err != nil {
		return nil, err
	}
	doc, err := p.apply(before.JSON)
	if err != nil {
		return nil, err
	}
	obj := res.New()
	if err := decodePatched(wr, p, res.GVK(), doc, obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	return encoding.ToOwn(res, obj)
}

// patchTypes are the Content-Types of a PATCH.
var patchTypes = []string{
	string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType),
	string(types.ApplyYAMLPatchType), string(types.ApplyCBORPatchType),
}

// schemaPatchTypes are the Content-Types for custom resources. A strategic merge needs the tags of a Go type.
var schemaPatchTypes = []string{
	string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType),
	string(types.ApplyCBORPatchType),
}

func patchTypesOf(res *api.Resource) []string {
	if res.Schema != 0 {
		return schemaPatchTypes
	}
	return patchTypes
}

// readPatch reads the request's patch.
// https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
func readPatch(w http.ResponseWriter, r *request, kind types.PatchType) (*sentPatch, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	if err := encoding.CheckDepth(body); err != nil {
		return nil, err
	}
	if !json.Valid(body) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	r.auditBody(body)
	if kind == types.JSONPatchType {
		p, err := patch.ParseJSON(body)
		if err != nil {
			return nil, err
		}
		return &sentPatch{apply: p.Apply, strict: p.Strict}, nil
	}
	p := &sentPatch{}
	if p.strict, err = kjson.UnmarshalStrict(body, &map[string]any{}); err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	p.named = patch.NamedBy(body)
	if kind == types.MergePatchType {
		p.apply = func(doc []byte) ([]byte, error) {
			patched, err := patch.Merge(doc, body)
			return patched, asBadPatch(r, err)
		}
		return p, nil
	}
	p.strategic = body
	p.apply = func(doc []byte) ([]byte, error) { return strategic(r, doc, body) }
	return p, nil
}

// strategic merges lists by the keys that the Go type's tags name.
func strategic(r *request, doc, changes []byte) ([]byte, error) {
	var into any = r.res.New()
	if r.subresource == "scale" {
		into = encoding.NewScale()
	}
	patched, err := patch.Strategic(doc, changes, into)
	if errors.Is(err, patch.ErrTooLong) {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	return patched, asBadPatch(r, err)
}

// asBadPatch returns the answer to a patch that cannot be applied. The errors of a strategic merge quote the patch,
// which the answer must not do if it has credentials.
func asBadPatch(r *request, err error) error {
	switch {
	case err == nil:
		return nil
	case r.confidential():
		return apierrors.NewBadRequest("the patch cannot be applied to the object")
	}
	return apierrors.NewBadRequest(err.Error())
}

// decodePatched decodes a patched document. The patch itself may be well-formed: an error in its result is Invalid,
// not a bad request.
func decodePatched(wr *write, p *sentPatch, want schema.GroupVersionKind, doc []byte, into runtime.Object) error {
	strict, err := encoding.UnmarshalStrict(doc, into)
	if invalid := encoding.Invalid(err, want, wr.request.name); invalid != nil {
		return invalid
	}
	if err == nil && into.GetObjectKind().GroupVersionKind() != want {
		err = encoding.CheckKind(want, doc)
	}
	if err == nil {
		warnings, refused := query.StrictErrors(wr.query, slices.Concat(p.strict, strict))
		if wr.warnings = append(wr.warnings, warnings...); len(refused) == 0 {
			return nil
		}
		err = fmt.Errorf("strict decoding error: %s", encoding.JoinErrors(refused))
	}
	return apierrors.NewInvalid(schema.GroupKind{}, "",
		field.ErrorList{field.Invalid(field.NewPath("patch"), p.quoted(wr, doc), err.Error())})
}

// quoted returns the part of a patch, or of the patched document, that an error shows. It is omitted if it has
// credentials.
func (p *sentPatch) quoted(wr *write, doc []byte) any {
	switch {
	case wr.confidential():
		return field.OmitValueType{}
	case p.strategic != nil: // the error shows the patch, not its result
		var patch map[string]any
		_ = encoding.Unmarshal(p.strategic, &patch) // readPatch has decoded it before
		return fmt.Sprintf("%+v", patch)
	}
	return string(doc)
}
