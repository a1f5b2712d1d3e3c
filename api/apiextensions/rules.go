package apiextensions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// The costs that the rules of a schema may have, each and together, for one object: kube-apiserver's limits, in the
// units of cel.PerCallLimit.
const (
	ruleCostLimit   = 10_000_000
	schemaCostLimit = 100_000_000
)

var ruleReasons = []string{string(internal.FieldValueDuplicate), string(internal.FieldValueForbidden),
	string(internal.FieldValueInvalid), string(internal.FieldValueRequired)}

// rules checks the rules of a schema. They are compiled if nothing is wrong with the schema (sound): the compiler's
// messages would not help otherwise.
func (w *walk) rules(s *node, sites *structural.RuleSite, in scope, sound bool, at *field.Path) {
	if len(s.XValidations) == 0 {
		return
	}
	at = at.Child("x-kubernetes-validations")
	before := len(w.errs)
	for i := range s.XValidations {
		if field.Enough(w.errs) {
			return
		}
		w.rule(s, &s.XValidations[i], at.Index(i))
	}
	if !sound || len(w.errs) > before || !w.withRules || sites == nil {
		return
	}
	estimates, err := sites.Estimates()
	if err != nil {
		w.ruleErrs = append(w.ruleErrs, field.InternalError(at, err))
		return
	}
	for i := range estimates {
		w.estimate(&s.XValidations[i], &estimates[i], in, at.Index(i))
	}
}

// rule checks the form of a rule.
func (w *walk) rule(s *node, r *internal.ValidationRule, at *field.Path) {
	const empty, lineBreaks = "must be non-empty if specified", "must not contain line breaks"
	text, message := strings.TrimSpace(r.Rule), strings.TrimSpace(r.Message)
	switch {
	case text == "":
		w.add(field.Required(at.Child("rule"), "rule is not specified"))
	case r.Message != "" && message == "":
		w.add(field.Invalid(at.Child("message"), r.Message, empty))
	case hasLineBreaks(message):
		w.add(field.Invalid(at.Child("message"), r.Message, lineBreaks))
	case hasLineBreaks(text) && message == "":
		w.add(field.Required(at.Child("message"), "message must be specified if rule contains line breaks"))
	}
	if r.MessageExpression != "" && strings.TrimSpace(r.MessageExpression) == "" {
		w.add(field.Required(at.Child("messageExpression"), "messageExpression must be non-empty if specified"))
	}
	if r.Reason != nil && !slices.Contains(ruleReasons, string(*r.Reason)) {
		w.add(field.NotSupported(at.Child("reason"), string(*r.Reason), ruleReasons))
	}
	if r.FieldPath == "" {
		return
	}
	at = at.Child("fieldPath")
	if strings.TrimSpace(r.FieldPath) == "" {
		w.add(field.Invalid(at, r.FieldPath, empty))
	}
	if hasLineBreaks(r.FieldPath) {
		w.add(field.Invalid(at, r.FieldPath, lineBreaks))
	}
	if s.err == nil { // of one that is not structural no path is known
		if _, _, err := s.find(r.FieldPath, true); err != nil {
			w.add(field.Invalid(at, r.FieldPath, "must be a valid path"))
		}
	}
}

func hasLineBreaks(text string) bool { return strings.ContainsAny(text, "\n\r") }

// estimate checks a compiled rule.
func (w *walk) estimate(r *internal.ValidationRule, e *structural.RuleEstimate, in scope, at *field.Path) {
	add := func(err *field.Error) { w.ruleErrs = append(w.ruleErrs, err) }
	if !w.unchanged && e.Cost > ruleCostLimit {
		add(field.Forbidden(at.Child("rule"), tooExpensive("estimated rule cost", e.Cost, ruleCostLimit)))
	}
	w.costs.observe(at.Child("rule"), e.Cost)
	if e.Err != nil {
		add(field.Invalid(at.Child("rule"), *r, e.Err.Error()))
	}
	switch {
	case e.MessageErr != nil:
		add(field.Invalid(at.Child("messageExpression"), *r, e.MessageErr.Error()))
	case r.MessageExpression != "" && e.Err == nil:
		if !w.unchanged && e.MessageCost > ruleCostLimit {
			add(field.Forbidden(at.Child("messageExpression"),
				tooExpensive("estimated messageExpression cost", e.MessageCost, ruleCostLimit)))
		}
		w.costs.observe(at.Child("messageExpression"), e.MessageCost)
	}
	switch {
	case e.UsesOldSelf && in.uncorrelated != nil:
		add(field.Invalid(at.Child("rule"), r.Rule,
			fmt.Sprintf("oldSelf cannot be used on the uncorrelatable portion of the schema within %v", in.uncorrelated)))
	case !e.UsesOldSelf && r.OptionalOldSelf != nil:
		add(field.Invalid(at.Child("optionalOldSelf"), *r.OptionalOldSelf,
			"may not be set if oldSelf is not used in rule"))
	}
}

// costs are those of a schema's rules.
type costs struct {
	total uint64
	// highest are the most expensive rules, at most four of those that take a hundredth of the limit or more.
	highest []ruleCost
}

type ruleCost struct {
	at   *field.Path
	cost uint64
}

func (c *costs) observe(at *field.Path, cost uint64) {
	if c.total+cost < c.total {
		c.total = ^uint64(0)
	} else {
		c.total += cost
	}
	if cost < schemaCostLimit/100 {
		return
	}
	c.highest = append(c.highest, ruleCost{at, cost})
	slices.SortStableFunc(c.highest, func(a, b ruleCost) int { return cmp.Compare(b.cost, a.cost) })
	c.highest = c.highest[:min(len(c.highest), 4)]
}

// totalCost checks the costs of all rules together.
func (w *walk) totalCost(at *field.Path) (errs field.ErrorList) {
	if w.costs.total <= schemaCostLimit {
		return nil
	}
	for _, r := range w.costs.highest {
		errs = append(errs, field.Forbidden(r.at,
			"contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"))
	}
	return append(errs, field.Forbidden(at, tooExpensive(
		"x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema", w.costs.total,
		schemaCostLimit)))
}

func tooExpensive(what string, cost, limit uint64) string {
	factor := float64(cost) / float64(limit)
	times := fmt.Sprintf("%.1fx", factor)
	switch {
	case factor > 100: // it probably grows with a square, and the figure says nothing
		times = "more than 100x"
	case factor < 1.5:
		times = fmt.Sprintf("%fx", factor)
	}
	return fmt.Sprintf("%s exceeds budget by factor of %s (try simplifying the rule, or adding maxItems, maxProperties, "+
		"and maxLength where arrays, maps, and strings are declared)", what, times)
}
