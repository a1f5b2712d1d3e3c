package apiextensions

import (
	"slices"
	"sync"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"

	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// newOptions returns the options for an update of the stored definition old. was is old in the internal type.
func newOptions(spec *internal.CustomResourceDefinitionSpec, old *definition,
	was *internal.CustomResourceDefinition) *options {
	common, each := schemasOf(was, old)
	roots := rootsOf(common, each)
	has := traitsOf(roots)
	o := &options{
		requireSchema:    hasAllSchemas(common, each),
		requireType:      !has.unknownType,
		requireAtomicSet: !has.looseSet,
		requireMapKeys:   !has.looseKeys,
		requireReview:    was.Spec.Conversion == nil || hasReviewOrNone(was.Spec.Conversion.ConversionReviewVersions),
		anyCABundle:      !isEstablished(old) || hasBadCABundle(was.Spec.Conversion),
		manyFields:       tooManyFields(spec, &was.Spec),
		unchanged:        unchangedSchemas(spec, &was.Spec),
		isStored:         func(expression string) bool { return has.expressions[expression] },
		keepUnknown: sync.OnceValue(func() bool {
			return slices.ContainsFunc(append([]*schema{common}, each...), hasUnprunedDefaults)
		}),
	}
	// The others must be structural even if the stored definition is not.
	if p := spec.PreserveUnknownFields; p == nil || *p {
		o.requireStructural = !slices.ContainsFunc(roots, func(root *node) bool { return !isStructural(root) })
	}
	return o
}

// traits are the findings of a walk over schemas.
type traits struct {
	defaults, extensions bool
	// unknownType reports a type that OpenAPI does not have. looseSet and looseKeys report items of sets and maps that
	// are no longer allowed.
	unknownType, looseSet, looseKeys bool
	expressions                      map[string]bool
}

func traitsOf(roots []*node) *traits {
	t := &traits{expressions: map[string]bool{}}
	for _, root := range roots {
		root.each(t.note)
	}
	return t
}

func (t *traits) note(s *node) {
	t.defaults = t.defaults || s.Default != nil
	t.extensions = t.extensions || s.XEmbeddedResource || s.XPreserveUnknownFields != nil || s.XIntOrString ||
		len(s.XListMapKeys) > 0 || s.XListType != nil || len(s.XValidations) > 0
	t.unknownType = t.unknownType || s.Type != "" && !slices.Contains(types, s.Type)
	t.looseSet = t.looseSet || len(setOfAtomic(s, nil)) > 0
	t.looseKeys = t.looseKeys || len(requiredKeys(s, nil)) > 0
	for i := range s.XValidations {
		t.expressions[s.XValidations[i].Rule] = true
		if message := s.XValidations[i].MessageExpression; message != "" {
			t.expressions[message] = true
		}
	}
}

func hasAllSchemas(common *schema, each []*schema) bool {
	return common != nil && common.root != nil ||
		!slices.ContainsFunc(each, func(s *schema) bool { return s == nil || s.root == nil })
}

func isStructural(root *node) bool {
	var patterns int64
	return root.err == nil && len(validateStructure(root, nil, &patterns)) == 0
}

func hasUnprunedDefaults(s *schema) bool {
	if s == nil || s.root == nil || !isStructural(s.root) {
		return false
	}
	compiled, err := structural.New(s.source)
	return err == nil && compiled.PruneDefaults()
}

func hasReviewOrNone(versions []string) bool {
	return len(versions) == 0 || slices.ContainsFunc(versions, isReviewVersion)
}

func hasBadCABundle(c *internal.CustomResourceConversion) bool {
	return c != nil && c.WebhookClientConfig != nil && checkCABundle(c.WebhookClientConfig.CABundle) != nil
}

// tooManyFields returns the versions that have too many selectable fields in both definitions, without a change.
func tooManyFields(spec, old *internal.CustomResourceDefinitionSpec) map[string]bool {
	many := map[string]bool{}
	note := func(version string, fields, before []internal.SelectableField) {
		if len(before) > maxSelectableFields && slices.Equal(fields, before) {
			many[version] = true
		}
	}
	note("", spec.SelectableFields, old.SelectableFields)
	before := map[string][]internal.SelectableField{}
	for i := range old.Versions {
		before[old.Versions[i].Name] = old.Versions[i].SelectableFields
	}
	for i := range spec.Versions {
		note(spec.Versions[i].Name, spec.Versions[i].SelectableFields, before[spec.Versions[i].Name])
	}
	return many
}

// unchangedSchemas returns the versions with the same schema as in the stored definition.
func unchangedSchemas(spec, old *internal.CustomResourceDefinitionSpec) map[string]bool {
	type pair struct {
		now, before *internal.CustomResourceValidation
	}
	same := map[pair]bool{}
	unchanged := map[string]bool{}
	now, before := schemaByVersion(spec), schemaByVersion(old)
	for i := range spec.Versions {
		name := spec.Versions[i].Name
		a, found := now(name)
		b, wasThere := before(name)
		if !found || !wasThere {
			continue
		}
		is, compared := same[pair{a, b}]
		if !compared {
			is = equal.Semantic(a, b)
			same[pair{a, b}] = is
		}
		if is {
			unchanged[name] = true
		}
	}
	return unchanged
}

// schemaByVersion returns a function that finds the schema of a version. If all versions have the same schema, it also
// returns that one for a version that does not exist.
func schemaByVersion(spec *internal.CustomResourceDefinitionSpec) func(string) (*internal.CustomResourceValidation,
	bool) {
	byName := map[string]*internal.CustomResourceValidation{}
	differ := false
	for i := range spec.Versions {
		v := &spec.Versions[i]
		differ = differ || v.Schema != nil
		if _, found := byName[v.Name]; !found {
			byName[v.Name] = v.Schema
		}
	}
	return func(name string) (*internal.CustomResourceValidation, bool) {
		if !differ {
			return spec.Validation, true
		}
		s, found := byName[name]
		return s, found && spec.Validation == nil
	}
}
