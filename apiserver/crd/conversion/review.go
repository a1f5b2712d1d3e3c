package conversion

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// reviewAnswer is the ConversionReview that a webhook returns.
type reviewAnswer struct {
	metav1.TypeMeta
	Response *struct {
		UID              types.UID     `json:"uid"`
		ConvertedObjects documents     `json:"convertedObjects"`
		Result           metav1.Status `json:"result"`
	} `json:"response"`
}

// documents holds the first elements of a list that may be long, and counts all.
type documents struct {
	n     int
	first []json.RawMessage
}

// maxDocuments limits the elements that are kept. It exceeds the number of objects in any request.
const maxDocuments = 1000

// UnmarshalJSON implements json.Unmarshaler.
func (d *documents) UnmarshalJSON(list []byte) error {
	from := json.NewDecoder(bytes.NewReader(list))
	begin, err := from.Token()
	if begin == nil || err != nil { // null
		return err
	}
	if begin != json.Delim('[') {
		return errors.New("convertedObjects is not a list")
	}
	for ; from.More(); d.n++ {
		var doc json.RawMessage
		if err := from.Decode(&doc); err != nil {
			return err
		}
		if d.n < maxDocuments {
			d.first = append(d.first, doc)
		}
	}
	return nil
}

// readReview returns the objects in an answer. As in kube-apiserver, a v1beta1 answer need not repeat the uid.
func readReview(doc []byte, version string, uid types.UID) (*documents, error) {
	var review reviewAnswer
	err := encoding.CheckDepth(doc)
	if err == nil {
		err = json.Unmarshal(doc, &review)
	}
	if err != nil {
		return nil, fail(callFailure, "the answer is not a ConversionReview: %v", err)
	}
	want := schema.GroupVersionKind{Group: apiextensionsv1.GroupName, Version: version, Kind: "ConversionReview"}
	r := review.Response
	switch {
	case version == "v1" && review.GroupVersionKind() != want:
		return nil, fail(malformedFailure, "expected webhook response of %v, got %v", want, review.GroupVersionKind())
	case r == nil:
		return nil, fail(malformedFailure, "no response provided")
	case version == "v1" && r.UID != uid:
		return nil, fail(malformedFailure, "expected response.uid=%q, got %q", uid, r.UID)
	case r.Result.Status == metav1.StatusSuccess:
		return &r.ConvertedObjects, nil
	case r.Result.Message != "":
		return nil, fail(malformedFailure, "%s", shortened(r.Result.Message))
	}
	return nil, fail(malformedFailure, "response.result.status was '%s', not 'Success'", shortened(r.Result.Status))
}

// maxWords limits the text from a webhook that is quoted in an error.
const maxWords = 4096

func shortened(words string) string { return words[:min(len(words), maxWords)] }

// metadataError is an error about the metadata of a converted object.
type metadataError struct{ error }

// blame returns the phrase that describes the invalid part.
func blame(err error, index int, list bool) string {
	var version *versionError
	switch {
	case errors.As(err, new(metadataError)) && list:
		return fmt.Sprintf("invalid metadata in object at index %d", index)
	case errors.As(err, new(metadataError)):
		return "invalid metadata"
	case list:
		return fmt.Sprintf("invalid converted object at index %d", index)
	case errors.As(err, &version):
		return "invalid object at index 0"
	}
	return "invalid object"
}

// versionError is an error about the version or kind of a converted object.
type versionError struct{ error }

// read decodes a converted object. It accepts only the labels and annotations of the new metadata and keeps the
// rest of the old.
func read(doc []byte, from *customresource.Object, to *customresource.Version) (*customresource.Object, error) {
	var content map[string]any
	if err := encoding.Unmarshal(doc, &content); err != nil {
		return nil, err
	}
	var is metav1.TypeMeta
	is.APIVersion, _ = content["apiVersion"].(string)
	is.Kind, _ = content["kind"].(string)
	if is.Kind == "" {
		return nil, runtime.NewMissingKindErr(shortened(string(doc)))
	}
	if is.APIVersion != to.APIVersion() {
		return nil, &versionError{fmt.Errorf("invalid groupVersion (expected %v, received %v)", to.APIVersion(),
			shortened(is.APIVersion))}
	}
	if is.Kind != from.Kind {
		return nil, &versionError{fmt.Errorf("invalid kind (expected %v, received %v)", from.Kind, shortened(is.Kind))}
	}
	metadata, _ := content["metadata"].(map[string]any)
	for _, part := range []struct{ name, was string }{
		{"name", from.Name}, {"namespace", from.Namespace}, {"uid", string(from.UID)},
	} {
		if is, _ := metadata[part.name].(string); is != part.was {
			if part.name == "uid" {
				part.name = "UID"
			}
			return nil, fmt.Errorf("must have the same %s: %v != %v", part.name, part.was, shortened(is))
		}
	}
	meta, err := restored(from, content)
	if err != nil {
		return nil, metadataError{err}
	}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		delete(content, name)
	}
	return to.Object(from.Kind, *meta, content), nil
}

// restored returns the object's previous metadata with the converted labels and annotations.
func restored(from *customresource.Object, content map[string]any) (*metav1.ObjectMeta, error) {
	value, found := content["metadata"]
	if !found {
		return nil, errors.New("missing metadata in converted object")
	}
	metadata, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid metadata of type %T in converted object", value)
	}
	meta := from.ObjectMeta.DeepCopy()
	var err error
	if meta.Labels, err = texts(metadata, "labels"); err != nil {
		return nil, err
	}
	if meta.Annotations, err = texts(metadata, "annotations"); err != nil {
		return nil, err
	}
	var errs field.ErrorList
	if !maps.Equal(meta.Labels, from.Labels) {
		errs = metav1validation.ValidateLabels(meta.Labels, field.NewPath("metadata", "labels"))
	}
	if len(errs) == 0 && !maps.Equal(meta.Annotations, from.Annotations) {
		errs = apivalidation.ValidateAnnotations(meta.Annotations, field.NewPath("metadata", "annotation"))
	}
	if len(errs) > maxErrors {
		errs = errs[:maxErrors]
	}
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return meta, nil
}

// maxErrors limits the errors that are listed for one object.
const maxErrors = 10

// texts returns the labels or annotations in metadata.
func texts(metadata map[string]any, name string) (map[string]string, error) {
	if metadata[name] == nil {
		return nil, nil
	}
	values, ok := metadata[name].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("invalid metadata.%s of type %T in converted object", name, metadata[name])
	}
	found := make(map[string]string, len(values))
	for key, value := range values {
		text, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name,
				shortened(key), value)
		}
		found[key] = text
	}
	return found, nil
}
