package admissionreview

import (
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// The author of a patch may be faulty or hostile. Three limits bound its cost: the number of operations, the bytes
// of the result, and the product of operations and bytes, because an operation may copy a whole list.
const (
	maxOperations = 10_000
	maxPatched    = 8 << 20
	maxWork       = 1 << 30
)

// Patch is a decoded JSON patch.
type Patch struct{ operations jsonpatch.Patch }

// DecodePatch decodes the patch of an answer.
func DecodePatch(doc []byte) (Patch, error) {
	if err := encoding.CheckDepth(doc); err != nil {
		return Patch{}, err
	}
	operations, err := jsonpatch.DecodePatch(doc)
	if err != nil {
		return Patch{}, err
	}
	if len(operations) > maxOperations {
		return Patch{}, fmt.Errorf("the allowed maximum operations in a JSON patch is %d, got %d", maxOperations,
			len(operations))
	}
	return Patch{operations}, nil
}

// Empty reports whether the patch has no operations.
func (p Patch) Empty() bool { return len(p.operations) == 0 }

// Apply returns a document with the patch applied.
func (p Patch) Apply(doc []byte) (patched []byte, err error) {
	if len(p.operations)*len(doc) > maxWork {
		return nil, fmt.Errorf("the patch has %d operations on a document of %d bytes, which are too many",
			len(p.operations), len(doc))
	}
	defer func() { // the library panics if an operation without a value meets a value that is not a scalar
		if fault := recover(); fault != nil {
			patched, err = nil, fmt.Errorf("applying a JSON patch: %v", fault)
		}
	}()
	if patched, err = p.operations.Apply(doc); err != nil {
		return nil, err
	}
	if len(patched) > maxPatched {
		return nil, fmt.Errorf("the patch makes a document of %d bytes, more than %d", len(patched), maxPatched)
	}
	return patched, encoding.CheckDepth(patched)
}
