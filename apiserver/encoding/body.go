package encoding

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// JSONOf converts the body of a request from its media type to JSON; "" means JSON. strict lists errors that the
// resulting JSON does not show.
func JSONOf(kinds *api.Snapshot, media string, body []byte) (doc []byte, strict []error, err error) {
	switch media {
	case "", MediaJSON:
	case MediaYAML:
		if body, strict, err = jsonOfYAML(body); err != nil {
			return nil, nil, apierrors.NewBadRequest("error parsing YAML: " + err.Error())
		}
	case MediaProtobuf:
		if body, err = jsonOfProtobuf(kinds, body); err != nil {
			return nil, nil, apierrors.NewBadRequest(err.Error())
		}
	case MediaCBOR:
		if body, err = JSONOfCBOR(body); err != nil {
			return nil, nil, apierrors.NewBadRequest(err.Error())
		}
	default:
		return nil, nil, UnsupportedMedia(MediaTypes)
	}
	return body, strict, CheckDepth(body)
}

// UnsupportedMedia returns the error for a body that has none of the accepted media types.
func UnsupportedMedia(media []string) error {
	return status.Error(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+strings.Join(media, ", "))
}

// jsonOfYAML converts a document. It returns duplicate keys, which the JSON does not show, in strict.
func jsonOfYAML(body []byte) (doc []byte, strict []error, err error) {
	if body, err = limits.ExpandYAML(body); err != nil {
		return nil, nil, err
	}
	doc, duplicates := yaml.YAMLToJSONStrict(body)
	if duplicates == nil {
		return doc, nil, nil
	}
	if doc, err = yaml.YAMLToJSON(body); err != nil {
		return nil, nil, err
	}
	return doc, YAMLErrors(duplicates), nil
}

// maxStrictErrors limits the unknown and duplicate fields that are reported for a body, as in sigs.k8s.io/json.
const maxStrictErrors = 100

// YAMLErrors splits the YAML decoder's error about duplicate keys into errors like the JSON decoder's. It returns
// at most the first hundred.
func YAMLErrors(err error) []error {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "),
		"yaml: unmarshal errors:\n")
	var errs []error
	for line := range strings.SplitSeq(text, "\n") {
		if errs = append(errs, errors.New(strings.TrimSpace(line))); len(errs) == maxStrictErrors {
			break
		}
	}
	return errs
}

// CheckKind returns an error if a document has a different kind.
func CheckKind(want schema.GroupVersionKind, body []byte) error {
	var is metav1.TypeMeta
	if err := Unmarshal(body, &is); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("error decoding: %v", err))
	}
	if is.Kind != "" && is.Kind != want.Kind || is.APIVersion != "" && is.APIVersion != want.GroupVersion().String() {
		return WrongKind(want, is.APIVersion, is.Kind)
	}
	return nil
}
