package authz

import (
	"context"
	"errors"
	"strings"
	"sync"

	celgo "github.com/google/cel-go/cel"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// requestVariable is the variable of match conditions: a SubjectAccessReviewSpec.
const requestVariable = "request"

// conditionsScope declares the variable with kube-apiserver's names of types.
var conditionsScope = sync.OnceValues(func() (*cel.Scope, error) {
	const (
		spec        = "kubernetes.SubjectAccessReviewSpec"
		resource    = "kubernetes.ResourceAttributes"
		nonResource = "kubernetes.NonResourceAttributes"
		fieldsType  = "kubernetes.FieldSelectorAttributes"
		labelsType  = "kubernetes.LabelSelectorAttributes"
		requirement = "kubernetes.SelectorRequirement"
	)
	selector := cel.Fields{"rawSelector": cel.Text, "requirements": cel.List(cel.Struct(requirement))}
	return cel.NewScope(map[string]*celgo.Type{requestVariable: cel.Struct(spec)}, map[string]cel.Fields{
		spec: {"resourceAttributes": cel.Struct(resource), "nonResourceAttributes": cel.Struct(nonResource),
			"user": cel.Text, "groups": cel.Texts, "extra": cel.TextLists, "uid": cel.Text},
		resource: {"namespace": cel.Text, "verb": cel.Text, "group": cel.Text, "version": cel.Text,
			"resource": cel.Text, "subresource": cel.Text, "name": cel.Text,
			"fieldSelector": cel.Struct(fieldsType), "labelSelector": cel.Struct(labelsType)},
		nonResource: {"path": cel.Text, "verb": cel.Text},
		fieldsType:  selector, labelsType: selector,
		requirement: {"key": cel.Text, "operator": cel.Text, "values": cel.Texts},
	})
})

// conditions decide whether a webhook is called.
type conditions struct {
	expressions []*cel.Expression
	// selects reports whether one of them reads a selector. If none does, document leaves selectors out.
	selects bool
}

func compileConditions(list []WebhookMatchCondition, root *field.Path) (c conditions, errs field.ErrorList) {
	if len(list) > maxConditions {
		return c, field.ErrorList{field.TooMany(root, len(list), maxConditions)}
	}
	seen := sets.New[string]()
	for i, condition := range list {
		path, source := root.Index(i).Child("expression"), condition.Expression
		switch {
		case strings.TrimSpace(source) == "":
			errs = append(errs, field.Required(path, ""))
			continue
		case seen.Has(source):
			errs = append(errs, field.Duplicate(path, source))
			continue
		}
		seen.Insert(source)
		scope, err := conditionsScope()
		if err != nil {
			errs = append(errs, field.InternalError(path, err))
			continue
		}
		x := scope.Compile(source, cel.Bool)
		if x.Err != nil {
			errs = append(errs, field.Invalid(path, source, x.Err.Error()))
			continue
		}
		c.expressions = append(c.expressions, x)
		c.selects = c.selects || x.SelectsField("fieldSelector") || x.SelectsField("labelSelector")
	}
	return c, errs
}

// meet reports whether all conditions are true. If one is false, the result is false even if others fail. Together
// they may cost as much as the match conditions of an admission webhook.
func (c *conditions) meet(ctx context.Context, spec *authorizationv1.SubjectAccessReviewSpec) (bool, error) {
	values := map[string]any{requestVariable: c.document(spec)}
	budget := int64(cel.MatchBudget)
	var failed []error
	for _, x := range c.expressions {
		result, err := x.Eval(ctx, values, &budget)
		switch {
		case err != nil:
			return false, err
		case result.False():
			return false, nil
		case result.Err != nil:
			failed = append(failed, result.Err)
		}
	}
	return len(failed) == 0, errors.Join(failed...)
}

// document returns the variable request. It has all text fields, even empty ones, so that conditions can compare
// them.
func (c *conditions) document(spec *authorizationv1.SubjectAccessReviewSpec) map[string]any {
	groups := spec.Groups
	if groups == nil {
		groups = []string{}
	}
	extra := make(map[string][]string, len(spec.Extra))
	for key, values := range spec.Extra {
		extra[key] = values
	}
	doc := map[string]any{"user": spec.User, "uid": spec.UID, "groups": groups, "extra": extra}
	if on := spec.NonResourceAttributes; on != nil {
		doc["nonResourceAttributes"] = map[string]string{"path": on.Path, "verb": on.Verb}
	}
	on := spec.ResourceAttributes
	if on == nil {
		return doc
	}
	resource := map[string]any{
		"namespace": on.Namespace, "verb": on.Verb, "group": on.Group, "version": on.Version,
		"resource": on.Resource, "subresource": on.Subresource, "name": on.Name,
	}
	if c.selects && on.FieldSelector != nil {
		var list []map[string]any
		for _, r := range on.FieldSelector.Requirements {
			list = append(list, requirementDocument(r.Key, string(r.Operator), r.Values))
		}
		resource["fieldSelector"] = map[string]any{"requirements": list}
	}
	if c.selects && on.LabelSelector != nil {
		var list []map[string]any
		for _, r := range on.LabelSelector.Requirements {
			list = append(list, requirementDocument(r.Key, string(r.Operator), r.Values))
		}
		resource["labelSelector"] = map[string]any{"requirements": list}
	}
	doc["resourceAttributes"] = resource
	return doc
}

func requirementDocument(key, operator string, values []string) map[string]any {
	if values == nil {
		values = []string{}
	}
	return map[string]any{"key": key, "operator": operator, "values": values}
}
