package query

import (
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The options of a verb come in the query; the options of a delete may also come in the body. Other parameters are
// ignored, as in kube-apiserver.

// CheckWrite rejects invalid options of a create or an update. kind is the kind of the options.
func CheckWrite(q url.Values, kind string) error {
	return Invalid(kind, validation.ValidateCreateOptions(&metav1.CreateOptions{
		DryRun: q["dryRun"], FieldManager: q.Get("fieldManager"),
		FieldValidation: q.Get("fieldValidation"),
	}))
}

// CheckPatch rejects options that do not fit the type of the patch.
func CheckPatch(q url.Values, patch types.PatchType) error {
	options := &metav1.PatchOptions{
		DryRun: q["dryRun"], FieldManager: q.Get("fieldManager"),
		FieldValidation: q.Get("fieldValidation"),
	}
	if text := q.Get("force"); text != "" {
		force, err := strconv.ParseBool(text)
		if err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("invalid force %q: must be true or false", text))
		}
		options.Force = &force
	}
	return Invalid("PatchOptions", validation.ValidatePatchOptions(options, patch))
}

// Invalid returns the error for options of a kind, nil if there are no errors.
func Invalid(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// StrictErrors decides by ?fieldValidation= (KEP-2885) about unknown and duplicate fields of a body: they cause
// warnings, which is the default, or a rejection.
func StrictErrors(q url.Values, strict []error) (warnings []string, rejected []error) {
	switch q.Get("fieldValidation") {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		return nil, strict
	default:
		for _, err := range strict {
			warnings = append(warnings, err.Error())
		}
	}
	return warnings, nil
}
