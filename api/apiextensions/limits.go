package apiextensions

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// The limits of one definition. Kubernetes limits only the size of the request. The largest definitions in use
// (argo-workflows) have 20,000 schemas.
const (
	// maxDepth limits the nesting of a schema, maxSchemas the number of schemas.
	maxDepth   = 500
	maxSchemas = 100_000
	// maxVersions limits the versions.
	maxVersions = 1_000
	// maxRules limits the rules. Each takes a millisecond to compile. maxRuleText limits their text in bytes. The
	// parser reads 60,000 bytes a second. The largest definitions in use have 220 rules of 30 KiB.
	maxRules    = 1_000
	maxRuleText = 256 << 10
	// maxPatterns limits the instructions of all compiled patterns together. bounds.MaxPattern limits each.
	maxPatterns = 500_000
)

// size has the measures of a definition that are limited.
type size struct{ depth, schemas, rules, ruleText int }

// measure checks a definition against the limits. A definition that exceeds one is rejected without further checks.
func measure(crd *definition) *field.Error {
	versions := field.NewPath("spec", "versions")
	if n := len(crd.Spec.Versions); n > maxVersions {
		return field.TooMany(versions, n, maxVersions)
	}
	var all size
	for i := range crd.Spec.Versions {
		s := crd.Spec.Versions[i].Schema
		if s == nil || s.OpenAPIV3Schema == nil {
			continue
		}
		all.measure(s.OpenAPIV3Schema, 1)
		why := ""
		switch {
		case all.depth > maxDepth:
			why = fmt.Sprintf("must not be nested deeper than %d levels", maxDepth)
		case all.schemas > maxSchemas:
			why = fmt.Sprintf("a definition must not have more than %d schemas", maxSchemas)
		case all.rules > maxRules:
			why = fmt.Sprintf("a definition must not have more than %d x-kubernetes-validations", maxRules)
		case all.ruleText > maxRuleText:
			why = fmt.Sprintf("a definition must not have more than %d bytes of x-kubernetes-validations", maxRuleText)
		}
		if why != "" {
			return field.Forbidden(versions.Index(i).Child("schema", "openAPIV3Schema"), why)
		}
	}
	return nil
}

func (n *size) measure(s *apiextensionsv1.JSONSchemaProps, depth int) {
	n.depth = max(n.depth, depth)
	if n.schemas++; n.depth > maxDepth || n.schemas > maxSchemas {
		return
	}
	n.rules += len(s.XValidations)
	for i := range s.XValidations {
		n.ruleText += len(s.XValidations[i].Rule) + len(s.XValidations[i].MessageExpression)
	}
	eachBelow(s, func(below *apiextensionsv1.JSONSchemaProps) { n.measure(below, depth+1) })
}

// eachBelow calls f with the schemas one level below a schema, in no particular order.
func eachBelow(s *apiextensionsv1.JSONSchemaProps, f func(*apiextensionsv1.JSONSchemaProps)) {
	if s.Items != nil {
		eachOf(s.Items.JSONSchemas, s.Items.Schema, f)
	}
	eachOf(s.AllOf, s.Not, f)
	eachOf(s.AnyOf, nil, f)
	eachOf(s.OneOf, nil, f)
	for _, a := range []*apiextensionsv1.JSONSchemaPropsOrBool{s.AdditionalProperties, s.AdditionalItems} {
		if a != nil {
			eachOf(nil, a.Schema, f)
		}
	}
	for _, named := range []map[string]apiextensionsv1.JSONSchemaProps{s.Properties, s.PatternProperties,
		s.Definitions} {
		for _, below := range named {
			f(&below)
		}
	}
	for _, d := range s.Dependencies {
		eachOf(nil, d.Schema, f)
	}
}

func eachOf(list []apiextensionsv1.JSONSchemaProps, one *apiextensionsv1.JSONSchemaProps,
	f func(*apiextensionsv1.JSONSchemaProps)) {
	for i := range list {
		f(&list[i])
	}
	if one != nil {
		f(one)
	}
}
