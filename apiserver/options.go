package apiserver

import (
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The options of a verb come in the query, those of a delete in the body as well. What
// the query has besides them means nothing and is ignored, as in kube-apiserver.

// checkWriteOptions refuses options of a create or an update that make no sense.
func checkWriteOptions(r *request, kind string) error {
	return invalidOptions(kind, validation.ValidateCreateOptions(&metav1.CreateOptions{
		DryRun: r.query["dryRun"], FieldManager: r.query.Get("fieldManager"), FieldValidation: r.query.Get("fieldValidation"),
	}))
}

// checkPatchOptions refuses options that do not fit the type of the patch.
func checkPatchOptions(r *request, patch types.PatchType) error {
	options := &metav1.PatchOptions{
		DryRun: r.query["dryRun"], FieldManager: r.query.Get("fieldManager"), FieldValidation: r.query.Get("fieldValidation"),
	}
	if text := r.query.Get("force"); text != "" {
		force, err := strconv.ParseBool(text)
		if err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("invalid force %q: must be true or false", text))
		}
		options.Force = &force
	}
	return invalidOptions("PatchOptions", validation.ValidatePatchOptions(options, patch))
}

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// dryRun reports whether the request must leave no trace.
func (r *request) dryRun() bool { return slices.Contains(r.query["dryRun"], metav1.DryRunAll) }

// takeStrictErrors decides what becomes of unknown and duplicate fields (KEP-2885): the
// default is to warn of them; those that must be refused are returned.
func (r *request) takeStrictErrors(strict []error) (refused []error) {
	switch r.query.Get("fieldValidation") {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		return strict
	default:
		for _, err := range strict {
			r.warnings = append(r.warnings, err.Error())
		}
	}
	return nil
}
