package apiextensions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/structural"
)

var ruleReasons = []string{string(internal.FieldValueDuplicate), string(internal.FieldValueForbidden),
	string(internal.FieldValueInvalid), string(internal.FieldValueRequired)}

// rules checks the rules of a schema. It compiles them only if the schema has no errors (sound), since the compiler's
// messages would not help otherwise.
func (w *walk) rules(s *node, sites *structural.RuleSite, in scope, sound bool, path *field.Path) {
	if len(s.XValidations) == 0 {
		return
	}
	path = path.Child("x-kubernetes-validations")
	before := len(w.errs)
	for i := range s.XValidations {
		if field.Enough(w.errs) {
			return
		}
		w.rule(s, &s.XValidations[i], path.Index(i))
	}
	if !sound || len(w.errs) > before || !w.withRules || sites == nil {
		return
	}
	estimates, err := sites.Estimates()
	if err != nil {
		w.ruleErrs = append(w.ruleErrs, field.InternalError(path, err))
		return
	}
	for i := range estimates {
		w.estimate(&s.XValidations[i], &estimates[i], in, path.Index(i))
	}
}

// rule checks the form of a rule.
func (w *walk) rule(s *node, r *internal.ValidationRule, path *field.Path) {
	const empty, lineBreaks = "must be non-empty if specified", "must not contain line breaks"
	text, message := strings.TrimSpace(r.Rule), strings.TrimSpace(r.Message)
	switch {
	case text == "":
		w.add(field.Required(path.Child("rule"), "rule is not specified"))
	case r.Message != "" && message == "":
		w.add(field.Invalid(path.Child("message"), r.Message, empty))
	case hasLineBreaks(message):
		w.add(field.Invalid(path.Child("message"), r.Message, lineBreaks))
	case hasLineBreaks(text) && message == "":
		w.add(field.Required(path.Child("message"), "message must be specified if rule contains line breaks"))
	}
	if r.MessageExpression != "" && strings.TrimSpace(r.MessageExpression) == "" {
		w.add(field.Required(path.Child("messageExpression"), "messageExpression must be non-empty if specified"))
	}
	if r.Reason != nil && !slices.Contains(ruleReasons, string(*r.Reason)) {
		w.add(field.NotSupported(path.Child("reason"), string(*r.Reason), ruleReasons))
	}
	if r.FieldPath == "" {
		return
	}
	path = path.Child("fieldPath")
	if strings.TrimSpace(r.FieldPath) == "" {
		w.add(field.Invalid(path, r.FieldPath, empty))
	}
	if hasLineBreaks(r.FieldPath) {
		w.add(field.Invalid(path, r.FieldPath, lineBreaks))
	}
	if s.err == nil { // paths are unknown in a schema that is not structural
		if _, _, err := s.find(r.FieldPath, true); err != nil {
			w.add(field.Invalid(path, r.FieldPath, "must be a valid path"))
		}
	}
}

func hasLineBreaks(text string) bool { return strings.ContainsAny(text, "\n\r") }

// estimate checks a compiled rule.
func (w *walk) estimate(r *internal.ValidationRule, e *structural.RuleEstimate, in scope, path *field.Path) {
	add := func(err *field.Error) { w.ruleErrs = append(w.ruleErrs, err) }
	if !w.unchanged && e.Cost > cel.MaxRuleEstimate {
		add(field.Forbidden(path.Child("rule"), tooExpensive("estimated rule cost", e.Cost, cel.MaxRuleEstimate)))
	}
	w.costs.observe(path.Child("rule"), e.Cost)
	if e.Err != nil {
		add(field.Invalid(path.Child("rule"), *r, e.Err.Error()))
	}
	switch {
	case e.MessageErr != nil:
		add(field.Invalid(path.Child("messageExpression"), *r, e.MessageErr.Error()))
	case r.MessageExpression != "" && e.Err == nil:
		if !w.unchanged && e.MessageCost > cel.MaxRuleEstimate {
			add(field.Forbidden(path.Child("messageExpression"),
				tooExpensive("estimated messageExpression cost", e.MessageCost, cel.MaxRuleEstimate)))
		}
		w.costs.observe(path.Child("messageExpression"), e.MessageCost)
	}
	switch {
	case e.UsesOldSelf && in.uncorrelated != nil:
		add(field.Invalid(path.Child("rule"), r.Rule,
			"oldSelf cannot be used on the uncorrelatable portion of the schema within "+in.uncorrelated.String()))
	case !e.UsesOldSelf && r.OptionalOldSelf != nil:
		add(field.Invalid(path.Child("optionalOldSelf"), *r.OptionalOldSelf,
			"may not be set if oldSelf is not used in rule"))
	}
}

// costs sums up the costs of a schema's rules.
type costs struct {
	total uint64
	// highest are the most expensive rules with at least a hundredth of the limit, at most four.
	highest []ruleCost
}

type ruleCost struct {
	path *field.Path
	cost uint64
}

func (c *costs) observe(path *field.Path, cost uint64) {
	if c.total+cost < c.total {
		c.total = ^uint64(0)
	} else {
		c.total += cost
	}
	if cost < cel.MaxSchemaEstimate/100 {
		return
	}
	c.highest = append(c.highest, ruleCost{path, cost})
	slices.SortStableFunc(c.highest, func(a, b ruleCost) int { return cmp.Compare(b.cost, a.cost) })
	c.highest = c.highest[:min(len(c.highest), 4)]
}

// totalCost checks the total cost of all rules.
func (w *walk) totalCost(path *field.Path) (errs field.ErrorList) {
	if w.costs.total <= cel.MaxSchemaEstimate {
		return nil
	}
	for _, r := range w.costs.highest {
		errs = append(errs, field.Forbidden(r.path,
			"contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"))
	}
	return append(errs, field.Forbidden(path, tooExpensive(
		"x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", w.costs.total,
		cel.MaxSchemaEstimate)))
}

func tooExpensive(subject string, cost, limit uint64) string {
	factor := float64(cost) / float64(limit)
	times := fmt.Sprintf("%.1fx", factor)
	switch {
	case factor > 100: // the cost probably grows quadratically, and an exact figure would not help
		times = "more than 100x"
	case factor < 1.5:
		times = fmt.Sprintf("%fx", factor)
	}
	return fmt.Sprintf("%s exceeds budget by factor of %s (try simplifying the rule, or adding maxItems, "+
		"maxProperties, and maxLength where arrays, maps, and strings are declared)", subject, times)
}
