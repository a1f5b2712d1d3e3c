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

// schema is the schema of a version, or of all versions.
type schema struct {
	root *node
	// source is the same schema as it was written, which api/structural compiles.
	source *apiextensionsv1.JSONSchemaProps
}

func newSchema(converted *internal.CustomResourceValidation, source *apiextensionsv1.CustomResourceValidation) *schema {
	if converted == nil || source == nil {
		return nil
	}
	return &schema{root: grow(converted.OpenAPIV3Schema), source: source.OpenAPIV3Schema}
}

// allowedWithStatus are the fields that the root of a schema may have beside a status subresource, whose writes are
// checked by properties[status] alone. Errors list them.
var allowedWithStatus = []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum",
	"ExclusiveMinimum", "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf",
	"Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}

// schema checks the schema of a version. unchanged reports whether it is that of the stored definition.
func (v *validation) schema(s *schema, hasStatus, unchanged bool, at *field.Path) field.ErrorList {
	if s == nil || s.root == nil {
		return nil
	}
	at = at.Child("openAPIV3Schema")
	var errs field.ErrorList
	if hasStatus {
		errs = rootWithStatus(s.root.props, at)
	}
	if s.root.Nullable {
		errs = append(errs, field.Forbidden(at.Child("nullable"), "nullable cannot be true at the root"))
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
			if wrong, sites = v.compile(s, at, &w); len(wrong) > 0 {
				errs = append(errs, wrong...)
			}
		}
	}
	w.node(s.root, sites, scope{defaults: true}, true, at)
	errs = append(errs, w.errs...)
	errs = append(errs, w.ruleErrs...)
	if len(errs) == 0 && formless != nil {
		errs = append(errs, field.Invalid(at, "", formless.Error()))
	}
	return append(errs, w.totalCost(at)...)
}

// compile checks that a schema is structural and its defaults are valid. Only then, the rules can be compiled.
func (v *validation) compile(s *schema, at *field.Path, w *walk) (field.ErrorList, *structural.RuleSite) {
	if errs := validateStructure(s.root, at, &v.patterns); len(errs) > 0 {
		return errs, nil
	}
	compiled, err := structural.New(s.source)
	if err != nil { // one that is structural compiles
		return field.ErrorList{field.Invalid(at, "", err.Error())}, nil
	}
	if errs := compiled.ValidateDefaults(at, &v.defaultChecks); len(errs) > 0 {
		return errs, nil
	}
	w.withRules = true
	return nil, compiled.RuleSite(v.known)
}

func rootWithStatus(root *props, at *field.Path) field.ErrorList {
	v := reflect.ValueOf(root).Elem()
	for i := range v.NumField() {
		switch name := v.Type().Field(i).Name; {
		case v.Field(i).IsZero():
		case name == "Type" && root.Type != "object":
			return field.ErrorList{field.Invalid(at.Child("type"), root.Type, `only "object" is allowed as the type at `+
				`the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(allowedWithStatus, name):
			return field.ErrorList{field.Invalid(at, field.OmitValueType{}, fmt.Sprintf("only %v fields are allowed at "+
				"the root of the schema if the status subresource is enabled", allowedWithStatus))}
		}
	}
	return nil
}

// walk checks the fields and extensions of a schema, and its rules.
type walk struct {
	*options
	// unchanged skips the limit of each rule's cost; withRules compiles the rules.
	unchanged, withRules bool
	errs, ruleErrs       field.ErrorList
	costs                costs
}

// scope is what holds in a part of a schema.
type scope struct {
	// defaults reports whether there may be defaults, reason why not.
	defaults bool
	reason   string
	// inMeta reports whether it is the type or the metadata of an object.
	inMeta bool
	// uncorrelated is the nearest path to the root whose values can't be compared with old ones, or nil.
	uncorrelated *field.Path
}

func (s scope) without(reason string) scope {
	s.defaults, s.reason = false, reason
	return s
}

func (s scope) uncorrelatedIn(at *field.Path) scope {
	if s.uncorrelated == nil {
		s.uncorrelated = at
	}
	return s
}

func (w *walk) add(err *field.Error) { w.errs = append(w.errs, err) }

// node checks a schema and those in it. sites compiles the rules; it is nil where there are none or they are not
// looked at.
func (w *walk) node(s *node, sites *structural.RuleSite, in scope, root bool, at *field.Path) {
	if s == nil || field.Enough(w.errs) || field.Enough(w.ruleErrs) {
		return
	}
	before := len(w.errs)
	w.fields(s, in, at)
	if s.AdditionalProperties != nil {
		if len(s.properties) > 0 && (!s.AdditionalProperties.Allows || s.AdditionalProperties.Schema != nil) {
			w.add(field.Forbidden(at.Child("additionalProperties"),
				"additionalProperties and properties are mutual exclusive"))
		}
		below := in
		if in.inMeta { // what would be pruned from it depends on the object
			below = in.without("inside additionalProperties applying to object metadata")
		}
		w.node(s.additional, sites.AdditionalProperties(), below, false, at.Child("additionalProperties"))
	}
	w.properties(s, sites, in, root, at)
	w.junctors(s, in, at)
	if s.Items != nil {
		below := in
		if s.XListType == nil || *s.XListType != listMap {
			below = in.uncorrelatedIn(at)
		}
		w.node(s.items, sites.Items(), below, false, at.Child("items"))
		for i, item := range s.itemList {
			w.node(item, nil, below, false, at.Child("items").Index(i))
		}
	}
	for _, d := range s.dependencies {
		w.node(d.node, nil, in, false, at.Child("dependencies").Key(d.name))
	}
	w.extensions(s, at)
	w.rules(s, sites, in, len(w.errs) == before, at)
}

func (w *walk) properties(s *node, sites *structural.RuleSite, in scope, root bool, at *field.Path) {
	for _, p := range s.properties {
		below := in
		if m := s.XMapType; m != nil && *m != "granular" && *m != "atomic" {
			below = below.uncorrelatedIn(at)
		}
		if (root || s.XEmbeddedResource) && (p.name == "metadata" || p.name == "kind" || p.name == "apiVersion") {
			below.inMeta = true
			if root {
				below = below.without("in top-level " + p.name)
			}
		}
		w.node(p.node, sites.Property(p.name), below, false, at.Child("properties").Key(p.name))
	}
}

func (w *walk) junctors(s *node, in scope, at *field.Path) {
	w.node(s.not, nil, in, false, at.Child("not"))
	for _, j := range []struct {
		name     string
		branches []*node
	}{{"allOf", s.allOf}, {"oneOf", s.oneOf}, {"anyOf", s.anyOf}} {
		for i, branch := range j.branches {
			w.node(branch, nil, in, false, at.Child(j.name).Index(i))
		}
	}
	for _, d := range s.definitions {
		w.node(d.node, nil, in, false, at.Child("definitions").Key(d.name))
	}
}

// types are the types of OpenAPI v3.
var types = []string{"array", "boolean", "integer", "number", "object", "string"}

// fields checks the fields that a schema may not have.
func (w *walk) fields(s *node, in scope, at *field.Path) {
	if w.requireType && s.Type != "" && !slices.Contains(types, s.Type) {
		w.add(field.NotSupported(at.Child("type"), s.Type, types))
	}
	if s.Default != nil && !in.defaults {
		detail := "must not be set"
		if in.reason != "" {
			detail += " " + in.reason
		}
		w.add(field.Forbidden(at.Child("default"), detail))
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
		{"x-kubernetes-embedded-resource", in.inMeta && s.XEmbeddedResource, "must not be used inside of resource meta"},
		{"uniqueItems", s.UniqueItems, "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"},
	} {
		if f.is {
			if f.detail == "" {
				f.detail = f.name + " is not supported"
			}
			w.add(field.Forbidden(at.Child(f.name), f.detail))
		}
	}
}
