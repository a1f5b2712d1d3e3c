package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/internal/limits"
	"github.com/coxswain-dev/coxswain/storage"
)

// maxBody is the maximum size of a request's body, in bytes.
const maxBody = limits.MaxRequest

// maxHeader is the maximum size of the headers of a request and its URL together, in bytes.
const maxHeader = 64 << 10

// readBody reads a request's body up to maxBody, and reserves the memory for decoding it. It ignores Content-Encoding:
// a body that is decompressed could grow without limit.
func readBody(w http.ResponseWriter, r *request) ([]byte, error) {
	body, err := r.exchange().ReadBody(w, r.Request, maxBody)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, apierrors.NewTimeoutError("the request's body did not arrive in time", 0)
	}
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return nil, err
	}
	if err != nil {
		return nil, apierrors.NewBadRequest("reading the request body: " + err.Error())
	}
	if r.exchange().Limited() && len(body) > responsewriter.FreeMemory {
		return body, r.reserveDecoding(encoding.Weight(r.contentType(), body))
	}
	return body, nil
}

// reserveDecoding reserves the memory for decoding the body, weight bytes, and the memory for the object that the body
// changes.
func (r *request) reserveDecoding(weight int64) error {
	object := int64(0)
	if r.objects != nil && r.name != "" && (r.verb == "update" || r.verb == "patch") {
		current, err := r.objects.Get(r.Context(), r.namespace, r.name, storage.At{Any: true})
		if err == nil {
			object = encoding.ObjectWeight * int64(len(current.JSON))
		}
	}
	return r.exchange().ReserveWrite(r.Context(), weight, object)
}

// reserveProtobuf reserves the memory for decoding a body in protobuf. It rejects one that is nested too deeply.
func (r *request) reserveProtobuf(body []byte, into any) error {
	if len(body) <= responsewriter.FreeMemory {
		return nil
	}
	weight, err := encoding.ProtobufWeight(body, into)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return r.reserveDecoding(weight)
}

// jsonBody reads a body in any of the supported formats, as JSON. strict are errors that the conversion to JSON hides,
// such as duplicate fields in YAML.
func (s *Server) jsonBody(w http.ResponseWriter, r *request) (body []byte, strict []error, err error) {
	if body, err = readBody(w, r); err != nil {
		return nil, nil, err
	}
	return encoding.JSONOf(s.Registry.Snapshot(), r.contentType(), body)
}

// contentType returns the media type of the body, without its parameters.
func (r *request) contentType() string {
	header := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(header); err == nil {
		return media
	}
	return header
}

// readObject reads the request's body as an object of the resource's kind.
func (s *Server) readObject(w http.ResponseWriter, r *request) (obj api.Object, warnings []string, err error) {
	obj = r.res.New()
	if warnings, err = s.readInto(w, r, r.res.GVK(), obj); err != nil {
		return nil, nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(r.res.GVK())
	obj, err = encoding.ToOwn(r.res, obj)
	return obj, warnings, err
}

// readInto reads the request's body as an object of the kind want.
func (s *Server) readInto(w http.ResponseWriter, r *request, want schema.GroupVersionKind, into runtime.Object) (
	warnings []string, err error) {
	if media := r.contentType(); r.res.Schema != 0 && media != "" && !slices.Contains(encoding.CustomTypes, media) {
		return nil, encoding.UnsupportedMedia(encoding.CustomTypes)
	}
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	if message, ok := into.(encoding.ProtoUnmarshaler); ok && r.contentType() == encoding.MediaProtobuf {
		if err := r.reserveProtobuf(body, into); err != nil {
			return nil, err
		}
		err := encoding.DecodeProtobuf(want, body, message)
		if err == nil && r.audit() != nil {
			into.GetObjectKind().SetGroupVersionKind(want)
			r.auditObject(into, nil)
		}
		return nil, err
	}
	body, strict, err := encoding.JSONOf(s.Registry.Snapshot(), r.contentType(), body)
	if err != nil {
		return nil, err
	}
	return decodeInto(r, want, body, strict, into)
}

// decodeInto decodes a body as the kind want, without defaults. For unknown and duplicate fields, including strict,
// ?fieldValidation= decides whether they are rejected, ignored or cause warnings.
func decodeInto(r *request, want schema.GroupVersionKind, body []byte, strict []error, into runtime.Object) (
	warnings []string, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, apierrors.NewBadRequest("the request has no body")
	}
	unknown, err := encoding.UnmarshalStrict(body, into)
	if custom, ok := into.(*customresource.Object); ok && err == nil {
		if err := checkCustomKind(r, custom, body); err != nil {
			return nil, err
		}
	}
	if err != nil || into.GetObjectKind().GroupVersionKind() != want {
		// The body has another kind or none, or decoding failed before the kind.
		if err := encoding.CheckKind(want, body); err != nil {
			return nil, err
		}
	}
	if invalid := encoding.Invalid(err, want, r.name); invalid != nil {
		return nil, invalid
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", want.Kind,
			want.Version, want.Kind, err))
	}
	warnings, refused := query.StrictErrors(r.query, slices.Concat(strict, unknown))
	if len(refused) > 0 {
		return nil, apierrors.NewBadRequest(
			fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error: %s",
				want.Kind, want.Version, want.Kind, encoding.JoinErrors(refused)))
	}
	if r.audit() != nil {
		r.auditObject(into, body)
	}
	return warnings, nil
}

// checkCustomKind rejects a custom resource whose body lacks a kind or has another kind or version. The body of a
// built-in kind may leave both out.
func checkCustomKind(r *request, obj *customresource.Object, body []byte) error {
	is, want := obj.GroupVersionKind(), r.res.GVK()
	switch {
	case is.Kind == "":
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", want.Kind,
			want.Version, want.Kind, runtime.NewMissingKindErr(string(body))))
	case is.GroupVersion() != want.GroupVersion():
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the API version in the data (%s) does not match the expected API version (%s)",
			is.GroupVersion(), want.GroupVersion()))
	case is.Kind != want.Kind:
		return apierrors.NewInvalid(is.GroupKind(), obj.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("kind"), is.Kind, "must be "+want.Kind)})
	}
	return nil
}
