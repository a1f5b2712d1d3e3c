package controlplane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/openapi"
)

// maxTypesChecked is the largest number of kinds that the expressions of one policy are checked for.
const maxTypesChecked = 10

// checkTypes compiles the expressions of a policy's validations for each kind that it names, with that kind's fields,
// and returns the compiler's complaints. The policy is not rejected because of them: it may be right nevertheless.
// An error in a variable shows where the variable is used.
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/#type-checking
func checkTypes(kinds *api.Snapshot, spec *admissionv1.ValidatingAdmissionPolicySpec) []admissionv1.ExpressionWarning {
	checkers := typeCheckers(kinds, spec)
	if len(checkers) == 0 {
		return nil
	}
	var warnings []admissionv1.ExpressionWarning
	check := func(path *field.Path, source string) {
		var found []string
		for _, c := range checkers {
			if complaints := c.check(source); complaints != "" {
				found = append(found, fmt.Sprintf("%v: %s\n", c.kind, complaints))
			}
		}
		if len(found) > 0 {
			warnings = append(warnings, admissionv1.ExpressionWarning{FieldRef: path.String(),
				Warning: strings.Join(found, "\n")})
		}
	}
	for i, v := range spec.Validations {
		path := field.NewPath("spec", "validations").Index(i)
		check(path.Child("expression"), v.Expression)
		if v.MessageExpression != "" {
			check(path.Child("messageExpression"), v.MessageExpression)
		}
	}
	return warnings
}

// typeChecker checks expressions for one kind of object.
type typeChecker struct {
	kind     schema.GroupVersionKind
	compiler *cel.Compiler
	declared cel.Declarations
}

func (c typeChecker) check(source string) string {
	complaints, err := c.compiler.Check(source, c.declared)
	if err != nil {
		return fmt.Sprintf("type checking error: %v", err)
	}
	return complaints
}

func typeCheckers(kinds *api.Snapshot, spec *admissionv1.ValidatingAdmissionPolicySpec) []typeChecker {
	types := typesToCheck(kinds, spec.MatchConstraints)
	if len(types) == 0 {
		return nil
	}
	declared := cel.Declarations{Params: spec.ParamKind != nil, Authorizer: true, Stored: true}
	if k := spec.ParamKind; k != nil {
		if res := kinds.Kind(schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)); res != nil {
			declared.Param = celShape(res, "params@")
		}
	}
	checkers := make([]typeChecker, len(types))
	for i, res := range types {
		declared.Object = celShape(res, "")
		checkers[i] = typeChecker{res.GVK(), cel.NewCompiler(true), declared}
		for _, v := range spec.Variables {
			checkers[i].compiler.Define(v.Name, v.Expression, declared)
		}
	}
	return checkers
}

// celShape returns the form of a kind's objects. The prefix distinguishes two kinds of one name.
func celShape(res *api.Resource, prefix string) *cel.Shape {
	name, definitions := openapi.Form(res)
	return cel.NewShape(prefix+res.Kind, name, definitions)
}

// typesToCheck returns the first kinds that the rules name, in the order of their names. A rule with a wildcard names
// no kind, unless the wildcard is among its resources.
func typesToCheck(kinds *api.Snapshot, match *admissionv1.MatchResources) []*api.Resource {
	if match == nil {
		return nil
	}
	var found []*api.Resource
	for _, rule := range match.ResourceRules {
		for _, gvr := range namedResources(&rule.Rule) {
			if res := kinds.Resource(gvr); res != nil && len(found) < maxTypesChecked && !slices.Contains(found, res) {
				found = append(found, res)
			}
		}
	}
	slices.SortFunc(found, func(a, b *api.Resource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
	})
	return found
}

func namedResources(r *admissionv1.Rule) []schema.GroupVersionResource {
	if slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIVersions, "*") {
		return nil
	}
	var named []schema.GroupVersionResource
	for _, group := range slices.Sorted(slices.Values(r.APIGroups)) {
		for _, version := range slices.Sorted(slices.Values(r.APIVersions)) {
			for _, resource := range slices.Sorted(slices.Values(r.Resources)) {
				if !strings.ContainsAny(resource, "*/") { // subresources have other kinds
					named = append(named, schema.GroupVersionResource{Group: group, Version: version,
						Resource: resource})
				}
			}
		}
	}
	return named
}
