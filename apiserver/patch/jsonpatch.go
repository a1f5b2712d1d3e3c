package patch

import (
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// maxOperations is how many operations one JSON patch may have, as in kube-apiserver.
const maxOperations = 10000

func init() {
	// A copy operation may double a document. This bounds the document that a patch may make.
	jsonpatch.AccumulatedCopySizeLimit = limits.MaxRequest
}

// JSON is a JSON patch (RFC 6902).
type JSON struct {
	operations jsonpatch.Patch
	// Strict are the unknown and duplicate fields of the patch.
	Strict []error
}

// operation has the members of an operation of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

// ParseJSON reads a JSON patch. An error is the answer to the client.
func ParseJSON(body []byte) (*JSON, error) {
	p := &JSON{}
	strict, err := kjson.UnmarshalStrict(body, &[]operation{})
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	for _, err := range strict {
		p.Strict = append(p.Strict, fmt.Errorf("json patch %w", err))
	}
	if p.operations, err = jsonpatch.DecodePatch(body); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if n := len(p.operations); n > maxOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, n))
	}
	return p, nil
}

// Apply returns the patched document. An error is the answer to the client; it does not name the cause, as in
// kube-apiserver.
func (p *JSON) Apply(doc []byte) ([]byte, error) {
	patched, err := applyJSON(p.operations, doc)
	if err != nil {
		return nil, status.Error(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"the server rejected our request due to an error in our request")
	}
	return patched, nil
}

// applyJSON calls patch.Apply, which panics where an operation without a value meets an object or a list:
// {"op":"test","path":""}.
func applyJSON(patch jsonpatch.Patch, doc []byte) (patched []byte, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("apply a JSON patch: %v", fault)
		}
	}()
	return patch.Apply(doc)
}
