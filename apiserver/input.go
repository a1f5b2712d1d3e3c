package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/bounds"
)

// maxBody is how many bytes a request may have, as in kube-apiserver.
const maxBody = 3 << 20

// maxDepth is how deeply JSON in a request may be nested.
const maxDepth = 500

// maxHeader is how many bytes the headers of a request may have, its URL included.
const maxHeader = 64 << 10

// readBody reads a request's body up to maxBody. What it is packed with, if it is, is not
// looked at: nothing is unpacked here that could grow.
func readBody(w http.ResponseWriter, r *request) ([]byte, error) {
	body, err := readAll(http.MaxBytesReader(w, r.Body, maxBody), r.ContentLength)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, apierrors.NewTimeoutError("the request's body did not arrive in time", 0)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest("reading the request body: " + err.Error())
	}
	return body, nil
}

// maxAnnounced is how much room a request gets for a body that it has only announced.
const maxAnnounced = 16 << 10

// readAll is io.ReadAll with room for the length that was announced, -1 if none was.
func readAll(from io.Reader, announced int64) ([]byte, error) {
	var body bytes.Buffer
	body.Grow(int(min(max(announced, 0), maxAnnounced)) + bytes.MinRead)
	_, err := body.ReadFrom(from)
	return body.Bytes(), err
}

// jsonBody reads a body in any of the formats understood, as JSON.
func (s *Server) jsonBody(w http.ResponseWriter, r *request) ([]byte, error) {
	body, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	return s.asJSON(r, body)
}

// asJSON converts a body from the format that its Content-Type names.
func (s *Server) asJSON(r *request, body []byte) ([]byte, error) {
	var err error
	switch r.contentType() {
	case "", mediaJSON:
	case mediaYAML:
		if body, err = r.yamlToJSON(body); err != nil {
			return nil, apierrors.NewBadRequest("error parsing YAML: " + err.Error())
		}
	case mediaProtobuf:
		if body, err = jsonOfProtobuf(s.Registry.Snapshot(), body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	case mediaCBOR:
		if body, err = jsonOfCBOR(body); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, unsupportedMedia(mediaTypes)
	}
	return body, checkDepth(body)
}

// maxStrictErrors is how many unknown and duplicate fields of a body are told, as in sigs.k8s.io/json.
const maxStrictErrors = 100

// yamlErrors takes apart what the YAML decoder says of keys that are there twice: of the first hundred, as the JSON
// decoder does.
func yamlErrors(err error) []error {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: unmarshal errors:\n")
	var errs []error
	for line := range strings.SplitSeq(text, "\n") {
		if errs = append(errs, errors.New(strings.TrimSpace(line))); len(errs) == maxStrictErrors {
			break
		}
	}
	return errs
}

// contentType is the media type of the body, without its parameters.
func (r *request) contentType() string {
	header := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(header); err == nil {
		return media
	}
	return header
}

// yamlToJSON leaves it to fieldValidation what becomes of a key that is there twice.
func (r *request) yamlToJSON(body []byte) ([]byte, error) {
	body, err := bounds.ExpandYAML(body)
	if err != nil {
		return nil, err
	}
	doc, strict := yaml.YAMLToJSONStrict(body)
	if strict == nil {
		return doc, nil
	}
	doc, err = yaml.YAMLToJSON(body)
	if err == nil {
		r.strict = append(r.strict, yamlErrors(strict)...)
	}
	return doc, err
}

// checkDepth refuses JSON that is nested too deeply for the decoders below.
func checkDepth(body []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return apierrors.NewBadRequest(fmt.Sprintf("the body is nested more than %d levels deep", maxDepth))
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// readObject reads the request's body as an object of the resource's kind.
func (s *Server) readObject(w http.ResponseWriter, r *request) (api.Object, error) {
	obj := r.res.New()
	if err := s.readInto(w, r, r.res.GVK(), obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(r.res.GVK())
	return asStored(r.res, obj)
}

// readInto reads the request's body as any type of a known kind.
func (s *Server) readInto(w http.ResponseWriter, r *request, want schema.GroupVersionKind, into runtime.Object) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if message, ok := into.(protoUnmarshaler); ok && r.contentType() == mediaProtobuf {
		return decodeProtobuf(want, body, message)
	}
	if body, err = s.asJSON(r, body); err != nil {
		return err
	}
	return decodeInto(r, want, body, into)
}

// decodeInto reads what a client sent as the given kind, and defaults nothing. Unknown and
// duplicate fields are refused, warned of or ignored as ?fieldValidation= says.
func decodeInto(r *request, want schema.GroupVersionKind, body []byte, into runtime.Object) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return apierrors.NewBadRequest("the request has no body")
	}
	strict, err := unmarshalStrict(body, into)
	if err != nil || into.GetObjectKind().GroupVersionKind() != want {
		// The kind is told wrongly, or not at all, or the decoder did not get so far.
		if err := checkKind(want, body); err != nil {
			return err
		}
	}
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", want.Kind, want.Version, want.Kind, err))
	}
	if refused := r.takeStrictErrors(slices.Concat(r.strict, strict)); len(refused) > 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error: %s",
			want.Kind, want.Version, want.Kind, joinErrors(refused)))
	}
	return nil
}

// checkKind refuses a document that says that it is of another kind.
func checkKind(want schema.GroupVersionKind, body []byte) error {
	var is metav1.TypeMeta
	if err := unmarshal(body, &is); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding: %v", err))
	}
	if is.Kind != "" && is.Kind != want.Kind || is.APIVersion != "" && is.APIVersion != want.GroupVersion().String() {
		return wrongKind(want, is.APIVersion, is.Kind)
	}
	return nil
}

func wrongKind(want schema.GroupVersionKind, apiVersion, kind string) error {
	if apiVersion != "" && apiVersion != want.GroupVersion().String() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			apiVersion, want.GroupVersion()))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s", kind, want.Version, want.Kind))
}

func joinErrors(errs []error) string {
	var b strings.Builder
	for i, err := range errs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(err.Error())
	}
	return b.String()
}
