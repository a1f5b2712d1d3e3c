package apiextensions

import (
	"fmt"
	"strings"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// validation validates one definition.
type validation struct {
	*options
	spec *internal.CustomResourceDefinitionSpec
	// common is the schema that all versions share. schemas has the schemas of the versions if they differ.
	common  *schema
	schemas []*schema

	defaultChecks structural.DefaultChecks
	patterns      int64 // the total of their instructions
}

// options relaxes checks that the stored definition already fails.
type options struct {
	// requireSchema requires a schema for each version. requireType requires its types to be OpenAPI's.
	requireSchema, requireType bool
	// requireStructural requires structural schemas. Only definitions with preserveUnknownFields may have others.
	requireStructural bool
	// requireAtomicSet and requireMapKeys apply to the items of sets and maps.
	requireAtomicSet, requireMapKeys bool
	// requireReview requires a version of ConversionReview that this server can send.
	requireReview bool
	// keepUnknown reports whether defaults may have unknown fields.
	keepUnknown func() bool
	// isStored reports whether the stored definition has the expression.
	isStored func(expression string) bool
	// unchanged has the versions with an unchanged schema: the cost limit of a single rule does not apply to them.
	unchanged map[string]bool
	// anyCABundle accepts an invalid CA bundle.
	anyCABundle bool
	// manyFields has the versions that may exceed the limit of selectable fields. "" stands for the fields that all
	// share.
	manyFields map[string]bool
}

func validateCreate(crd *definition) field.ErrorList {
	errs := validateName(crd)
	v, err := newValidation(crd)
	if err != nil {
		return append(errs, err)
	}
	v.options = &options{requireSchema: true, requireType: true, requireStructural: true, requireAtomicSet: true,
		requireMapKeys: true, requireReview: true,
		anyCABundle: true, // it is not used before the definition is established
	}
	errs = append(errs, v.validateSpec(field.NewPath("spec"))...)
	errs = append(errs, validateStatus(crd)...)
	errs = append(errs, validateApproval(crd, nil)...)
	return append(errs, validatePreserve(crd, nil)...)
}

func validateUpdate(crd, old *definition) field.ErrorList {
	v, err := newValidation(crd)
	if err != nil {
		return field.ErrorList{err}
	}
	was, internalErr := convert(old)
	if internalErr != nil {
		return field.ErrorList{field.InternalError(nil, internalErr)}
	}
	v.options = newOptions(v.spec, old, was)
	specPath := field.NewPath("spec")
	errs := v.validateSpec(specPath)
	if isEstablished(old) { // objects are stored under these names
		errs = append(errs, validate.Unchanged(v.spec.Scope, was.Spec.Scope, specPath.Child("scope"))...)
		errs = append(errs,
			validate.Unchanged(v.spec.Names.Kind, was.Spec.Names.Kind, specPath.Child("names", "kind"))...)
	}
	errs = append(errs, validate.Unchanged(v.spec.Group, was.Spec.Group, specPath.Child("group"))...)
	errs = append(errs,
		validate.Unchanged(v.spec.Names.Plural, was.Spec.Names.Plural, specPath.Child("names", "plural"))...)
	errs = append(errs, validateStatus(crd)...)
	errs = append(errs, validateApproval(crd, old)...)
	return append(errs, validatePreserve(crd, old)...)
}

// newValidation converts the definition, which moves the parts that all versions share to the top of the spec.
func newValidation(crd *definition) (*validation, *field.Error) {
	if err := measure(crd); err != nil {
		return nil, err
	}
	converted, err := convert(crd)
	if err != nil {
		return nil, field.InternalError(nil, err)
	}
	v := &validation{spec: &converted.Spec}
	v.common, v.schemas = schemasOf(converted, crd)
	return v, nil
}

func schemasOf(converted *internal.CustomResourceDefinition, crd *definition) (common *schema, each []*schema) {
	if converted.Spec.Validation != nil && len(crd.Spec.Versions) > 0 {
		common = newSchema(converted.Spec.Validation, crd.Spec.Versions[0].Schema)
	}
	each = make([]*schema, len(converted.Spec.Versions))
	for i := range each {
		each[i] = newSchema(converted.Spec.Versions[i].Schema, crd.Spec.Versions[i].Schema)
	}
	return common, each
}

// all returns the roots of the schemas.
func (v *validation) all() []*node { return rootsOf(v.common, v.schemas) }

func rootsOf(common *schema, each []*schema) []*node {
	var roots []*node
	for _, s := range append([]*schema{common}, each...) {
		if s != nil && s.root != nil {
			roots = append(roots, s.root)
		}
	}
	return roots
}

func (v *validation) validateSpec(path *field.Path) field.ErrorList {
	spec := v.spec
	errs := validateGroup(spec.Group, path.Child("group"))
	errs = append(errs, validate.RequiredOneOf(path.Child("scope"), spec.Scope, internal.ClusterScoped,
		internal.NamespaceScoped)...)
	errs = append(errs, v.requiredSchemas(path)...)
	errs = append(errs, v.versions(path)...)
	errs = append(errs, validateSpecNames(&spec.Names, path.Child("names"))...)
	if field.Enough(errs) {
		return errs
	}
	errs = append(errs, v.schema(v.common, hasAnyStatus(spec), v.unchanged[spec.Version], path.Child("validation"))...)
	errs = append(errs, validateSubresources(spec.Subresources, path.Child("subresources"))...)
	errs = append(errs, validateColumns(spec.AdditionalPrinterColumns, path.Child("additionalPrinterColumns"))...)
	if len(spec.SelectableFields) > 0 {
		fields := path.Child("selectableFields")
		if v.common == nil {
			errs = append(errs, field.Invalid(fields, "", "may only be set when validations.schema is included"))
		} else {
			errs = append(errs, v.selectableFields(spec.SelectableFields, v.common, "", fields, path)...)
		}
	}
	conversion := path.Child("conversion")
	if c := spec.Conversion; c != nil && c.Strategy != internal.NoneConverter && v.preserves() {
		errs = append(errs, field.Invalid(conversion.Child("strategy"), c.Strategy,
			"must be None if spec.preserveUnknownFields is true"))
	}
	return append(errs, v.conversion(spec.Conversion, conversion)...)
}

func validateGroup(group string, path *field.Path) field.ErrorList {
	complaints := naming.IsDNS1123Subdomain(group)
	switch {
	case group == "":
		return field.ErrorList{field.Required(path, "")}
	case len(complaints) > 0:
		return field.ErrorList{field.Invalid(path, group, strings.Join(complaints, ","))}
	case !strings.Contains(group, "."):
		return field.ErrorList{field.Invalid(path, group, "should be a domain with at least one dot")}
	}
	return nil
}

// preserves reports whether the kind keeps fields that its schemas do not declare, as definitions from before v1 may.
func (v *validation) preserves() bool {
	p := v.spec.PreserveUnknownFields
	return p == nil || *p
}

// requiredSchemas requires schemas where they are needed, and determines whether they must be structural: pruning,
// defaults and extensions need structural schemas.
func (v *validation) requiredSchemas(fldPath *field.Path) (errs field.ErrorList) {
	v.requireStructural = v.requireStructural || !v.preserves()
	if v.common == nil || v.common.root == nil {
		for i, version := range v.spec.Versions {
			if v.schemas[i] != nil && v.schemas[i].root != nil {
				continue
			}
			if field.Enough(errs) {
				break
			}
			path := fldPath.Child("versions").Index(i).Child("schema", "openAPIV3Schema")
			switch {
			case v.requireSchema:
				errs = append(errs, field.Required(path, ""))
			case !v.preserves() && version.Served:
				errs = append(errs, field.Required(path, "because otherwise all fields are pruned"))
			}
		}
	}
	has := traitsOf(v.all())
	if has.defaults && v.preserves() {
		errs = append(errs, field.Invalid(fldPath.Child("preserveUnknownFields"), true,
			"must be false in order to use defaults in the schema"))
	}
	v.requireStructural = v.requireStructural || has.defaults || has.extensions
	v.defaultChecks.KeepUnknown = v.keepUnknown
	return errs
}

func validateStatusUpdate(crd, _ *definition) field.ErrorList {
	return validateNames(names(&crd.Status.AcceptedNames), field.NewPath("status", "acceptedNames"))
}

// names converts the names in a spec or a status to the internal type.
func names(n *apiextensionsv1.CustomResourceDefinitionNames) *internal.CustomResourceDefinitionNames {
	return &internal.CustomResourceDefinitionNames{Plural: n.Plural, Singular: n.Singular, ShortNames: n.ShortNames,
		Kind: n.Kind, ListKind: n.ListKind, Categories: n.Categories}
}

func validateStatus(crd *definition) field.ErrorList {
	errs := validateStatusUpdate(crd, nil)
	return append(errs, validateStoredVersions(crd, field.NewPath("status", "storedVersions"))...)
}

// validateStoredVersions requires the spec to have every version that stored objects may have.
func validateStoredVersions(crd *definition, path *field.Path) (errs field.ErrorList) {
	stored := crd.Status.StoredVersions
	if len(stored) == 0 {
		return field.ErrorList{field.Invalid(path, stored, "must have at least one stored version")}
	}
	last := make(map[string]int, len(stored))
	for i, name := range stored {
		last[name] = i
	}
	for _, version := range crd.Spec.Versions {
		_, found := last[version.Name]
		if version.Storage && !found && !field.Enough(errs) {
			errs = append(errs, field.Invalid(path, stored, "must have the storage version "+version.Name))
		}
		delete(last, version.Name)
	}
	for i, name := range stored {
		if j, missing := last[name]; missing && j == i && !field.Enough(errs) {
			errs = append(errs, field.Invalid(path.Index(i), name, fmt.Sprintf("missing from spec.versions; %[1]s was "+
				"previously a storage version, and must remain in spec.versions until a storage migration ensures no "+
				"data remains persisted in %[1]s and removes %[1]s from status.storedVersions", name)))
		}
	}
	return errs
}

// validatePreserve rejects preserveUnknownFields, unless the stored definition already has it.
func validatePreserve(crd, old *definition) field.ErrorList {
	if !crd.Spec.PreserveUnknownFields || old != nil && old.Spec.PreserveUnknownFields {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "cannot set to true, "+
		"set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead")}
}

// isLabel returns the reasons why a text is not a DNS label that begins with a letter, in one message, or "".
func isLabel(text string) string { return strings.Join(utilvalidation.IsDNS1035Label(text), ",") }
