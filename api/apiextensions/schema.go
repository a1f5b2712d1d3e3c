package apiextensions

import (
	"fmt"
	"reflect"
	"slices"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// schema is the schema of one version, or the one that all versions share.
type schema struct {
	root *node
	// source is the schema as written. api/structural compiles it.
	source *apiextensionsv1.JSONSchemaProps
}

func newSchema(converted *internal.CustomResourceValidation, source *apiextensionsv1.CustomResourceValidation) *schema {
	if converted == nil || source == nil {
		return nil
	}
	return &schema{root: grow(converted.OpenAPIV3Schema), source: source.OpenAPIV3Schema}
}

// allowedWithStatus lists the fields that the root of a schema may have if there is a status subresource: writes to it
// are checked against properties[status] alone. Errors contain this list.
var allowedWithStatus = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum",
	"ExclusiveMinimum", "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf",
	"Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}

// schema checks the schema of a version. unchanged reports whether the stored definition has the same schema.
func (v *validation) schema(s *schema, hasStatus, unchanged bool, path *field.Path) field.ErrorList {
	if s == nil || s.root == nil {
		return nil
	}
	path = path.Child("openAPIV3Schema")
	var errs field.ErrorList
	if hasStatus {
		errs = rootWithStatus(s.root.props, path)
	}
	if s.root.Nullable {
		errs = append(errs, field.Forbidden(path.Child("nullable"), "nullable cannot be true at the root"))
	}
	w := walk{options: v.options, unchanged: unchanged}
	var sites *structural.RuleSite
	var formless error
	if v.requireStructural {
		switch {
		case s.root.err != nil:
			formless = s.root.err
		default:
			var wrong field.ErrorList
			if wrong, sites = v.compile(s, path, &w); len(wrong) > 0 {
				errs = append(errs, wrong...)
			}
		}
	}
	w.node(s.root, sites, scope{defaults: true}, true, path)
	errs = append(errs, w.errs...)
	errs = append(errs, w.ruleErrs...)
	if len(errs) == 0 && formless != nil {
		errs = append(errs, field.Invalid(path, "", formless.Error()))
	}
	return append(errs, w.totalCost(path)...)
}

// compile checks that a schema is structural and that its defaults are valid. Otherwise its rules cannot be compiled.
func (v *validation) compile(s *schema, path *field.Path, w *walk) (field.ErrorList, *structural.RuleSite) {
	if errs := validateStructure(s.root, path, &v.patterns); len(errs) > 0 {
		return errs, nil
	}
	compiled, err := structural.New(s.source)
	if err != nil { // a structural schema compiles
		return field.ErrorList{field.Invalid(path, "", err.Error())}, nil
	}
	if errs := compiled.ValidateDefaults(path, &v.defaultChecks); len(errs) > 0 {
		return errs, nil
	}
	w.withRules = true
	return nil, compiled.RuleSite(v.isStored)
}

func rootWithStatus(root *props, path *field.Path) field.ErrorList {
	v := reflect.ValueOf(root).Elem()
	for i := range v.NumField() {
		switch name := v.Type().Field(i).Name; {
		case v.Field(i).IsZero():
		case name == "Type" && root.Type != "object":
			return field.ErrorList{field.Invalid(path.Child("type"), root.Type, `only "object" is allowed as the type `+
				`at the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(allowedWithStatus, name):
			return field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("only %v fields are allowed "+
				"at the root of the schema if the status subresource is enabled", allowedWithStatus))}
		}
	}
	return nil
}

// walk checks the fields, extensions and rules of a schema.
type walk struct {
	*options
	// unchanged skips the limit of each rule's cost; withRules compiles the rules.
	unchanged, withRules bool
	errs, ruleErrs       field.ErrorList
	costs                costs
}

// scope describes a part of a schema.
type scope struct {
	// defaults reports whether defaults are allowed. reason is the reason if they are not.
	defaults bool
	reason   string
	// inMeta reports whether the part is the apiVersion, kind or metadata of an object.
	inMeta bool
	// uncorrelated is the path of the nearest part around this one with values that cannot be matched with former ones,
	// or nil.
	uncorrelated *field.Path
}

func (s scope) without(reason string) scope {
	s.defaults, s.reason = false, reason
	return s
}

func (s scope) uncorrelatedIn(path *field.Path) scope {
	if s.uncorrelated == nil {
		s.uncorrelated = path
	}
	return s
}

func (w *walk) add(err *field.Error) { w.errs = append(w.errs, err) }

// node checks a schema and the schemas below it. sites compiles the rules. It is nil if there are none or they are not
// checked.
func (w *walk) node(s *node, sites *structural.RuleSite, in scope, root bool, path *field.Path) {
	if s == nil || field.Enough(w.errs) || field.Enough(w.ruleErrs) {
		return
	}
	before := len(w.errs)
	w.fields(s, in, path)
	if s.AdditionalProperties != nil {
		if len(s.properties) > 0 && (!s.AdditionalProperties.Allows || s.AdditionalProperties.Schema != nil) {
			w.add(field.Forbidden(path.Child("additionalProperties"),
				"additionalProperties and properties are mutual exclusive"))
		}
		below := in
		if in.inMeta { // the object determines which parts of it are pruned
			below = in.without("inside additionalProperties applying to object metadata")
		}
		w.node(s.additional, sites.AdditionalProperties(), below, false, path.Child("additionalProperties"))
	}
	w.properties(s, sites, in, root, path)
	w.junctors(s, in, path)
	if s.Items != nil {
		below := in
		if s.XListType == nil || *s.XListType != listMap {
			below = in.uncorrelatedIn(path)
		}
		w.node(s.items, sites.Items(), below, false, path.Child("items"))
		for i, item := range s.itemList {
			w.node(item, nil, below, false, path.Child("items").Index(i))
		}
	}
	for _, d := range s.dependencies {
		w.node(d.node, nil, in, false, path.Child("dependencies").Key(d.name))
	}
	w.extensions(s, path)
	w.rules(s, sites, in, len(w.errs) == before, path)
}

func (w *walk) properties(s *node, sites *structural.RuleSite, in scope, root bool, path *field.Path) {
	for _, p := range s.properties {
		below := in
		if m := s.XMapType; m != nil && *m != "granular" && *m != "atomic" {
			below = below.uncorrelatedIn(path)
		}
		if (root || s.XEmbeddedResource) && (p.name == "metadata" || p.name == "kind" || p.name == "apiVersion") {
			below.inMeta = true
			if root {
				below = below.without("in top-level " + p.name)
			}
		}
		w.node(p.node, sites.Property(p.name), below, false, path.Child("properties").Key(p.name))
	}
}

func (w *walk) junctors(s *node, in scope, path *field.Path) {
	w.node(s.not, nil, in, false, path.Child("not"))
	for _, j := range []struct {
		name     string
		branches []*node
	}{{"allOf", s.allOf}, {"oneOf", s.oneOf}, {"anyOf", s.anyOf}} {
		for i, branch := range j.branches {
			w.node(branch, nil, in, false, path.Child(j.name).Index(i))
		}
	}
	for _, d := range s.definitions {
		w.node(d.node, nil, in, false, path.Child("definitions").Key(d.name))
	}
}

// types are the types of OpenAPI v3.
var types = []string{"array", "boolean", "integer", "number", "object", "string"}

// fields rejects the fields that a schema may not have.
func (w *walk) fields(s *node, in scope, path *field.Path) {
	if w.requireType && s.Type != "" && !slices.Contains(types, s.Type) {
		w.add(field.NotSupported(path.Child("type"), s.Type, types))
	}
	if s.Default != nil && !in.defaults {
		detail := "must not be set"
		if in.reason != "" {
			detail += " " + in.reason
		}
		w.add(field.Forbidden(path.Child("default"), detail))
	}
	for _, f := range []struct {
		name   string
		is     bool
		detail string
	}{
		{"id", s.ID != "", ""},
		{"additionalItems", s.AdditionalItems != nil, ""},
		{"patternProperties", len(s.PatternProperties) > 0, ""},
		{"definitions", len(s.Definitions) > 0, ""},
		{"dependencies", s.Dependencies != nil, ""},
		{"$ref", s.Ref != nil, ""},
		{"type", s.Type == "null", "type cannot be set to null, use nullable as an alternative"},
		{"items", len(s.itemList) > 0, "items must be a schema object and not an array"},
		{"x-kubernetes-embedded-resource", in.inMeta && s.XEmbeddedResource,
			"must not be used inside of resource meta"},
		{"uniqueItems", s.UniqueItems,
			"uniqueItems cannot be set to true since the runtime complexity becomes quadratic"},
	} {
		if f.is {
			if f.detail == "" {
				f.detail = f.name + " is not supported"
			}
			w.add(field.Forbidden(path.Child(f.name), f.detail))
		}
	}
}
