package apiextensions

import (
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// validateName checks that a new definition has the required name, <plural>.<group>.
func validateName(crd *definition) (errs field.ErrorList) {
	want := crd.Spec.Names.Plural + "." + crd.Spec.Group
	for _, n := range []struct {
		field, value string
		checked      bool
	}{{"generateName", crd.GenerateName, crd.GenerateName != ""}, {"name", crd.Name, crd.Name != ""}} {
		if n.checked && n.value != want {
			errs = append(errs, field.Invalid(field.NewPath("metadata", n.field), n.value,
				`must be spec.names.plural+"."+spec.group`))
		}
	}
	return errs
}

// validateSpecNames checks the requested names, and that the required ones are set.
func validateSpecNames(n *internal.CustomResourceDefinitionNames, path *field.Path) (errs field.ErrorList) {
	for _, required := range []struct{ name, value string }{
		{"plural", n.Plural}, {"singular", n.Singular}, {"kind", n.Kind}, {"listKind", n.ListKind},
	} {
		if required.value == "" {
			errs = append(errs, field.Required(path.Child(required.name), ""))
		}
	}
	return append(errs, validateNames(n, path)...)
}

// validateNames checks the form of requested or accepted names.
func validateNames(n *internal.CustomResourceDefinitionNames, path *field.Path) (errs field.ErrorList) {
	check := func(path *field.Path, value, lowered, prefix string) {
		if why := isLabel(lowered); why != "" {
			errs = append(errs, field.Invalid(path, value, prefix+why))
		}
	}
	const mixed = "may have mixed case, but should otherwise match: "
	for _, name := range []struct{ field, value, lowered, prefix string }{
		{"plural", n.Plural, n.Plural, ""},
		{"singular", n.Singular, n.Singular, ""},
		{"kind", n.Kind, strings.ToLower(n.Kind), mixed},
		{"listKind", n.ListKind, strings.ToLower(n.ListKind), mixed},
	} {
		if name.value != "" {
			check(path.Child(name.field), name.value, name.lowered, name.prefix)
		}
	}
	list := func(path *field.Path, values []string) {
		for i, value := range values {
			if field.Enough(errs) {
				return
			}
			check(path.Index(i), value, value, "")
		}
	}
	list(path.Child("shortNames"), n.ShortNames)
	if n.Kind != "" && n.Kind == n.ListKind {
		errs = append(errs, field.Invalid(path.Child("listKind"), n.ListKind, "kind and listKind may not be the same"))
	}
	list(path.Child("categories"), n.Categories)
	return errs
}

// validateApproval requires definitions in the groups of the Kubernetes community to link the approval of their API
// (https://kep.k8s.io/1111). A stored definition without such a link may keep its state.
func validateApproval(crd, old *definition) field.ErrorList {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	if old != nil {
		if was, _ := apihelpers.GetAPIApprovalState(old.Annotations); was == state {
			return nil
		}
	}
	const annotation = apiextensionsv1.KubeAPIApprovedAnnotation
	keyPath := field.NewPath("metadata", "annotations").Key(annotation)
	switch state {
	case apihelpers.APIApprovalInvalid:
		return field.ErrorList{field.Invalid(keyPath, crd.Annotations[annotation], reason)}
	case apihelpers.APIApprovalMissing:
		return field.ErrorList{field.Required(keyPath, reason)}
	}
	return nil
}
