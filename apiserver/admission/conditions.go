package admission

import (
	"context"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
)

// conditions are the match conditions of a webhook or a policy. They are immutable.
type conditions struct {
	list []*cel.Expression
	// name is the webhook's or the policy's, and of is "webhook" or "policy".
	name, of string
	kind     calls.Type
	log      *calls.Log
}

// meet reports whether all conditions are true. If one is false, the result is false even if others fail. An error
// is left to the failure policy; if that ignores failures, the request does not meet the conditions.
func (c *conditions) meet(ctx context.Context, q *request, e *cel.Evaluator, ignores bool) (bool, error) {
	start := time.Now()
	met, failed, err := c.evaluate(ctx, e)
	if ignores {
		err = nil
	}
	c.log.Evaluated(calls.Conditions{Name: c.name, Of: c.of, Type: c.kind, Operation: string(q.Operation),
		Took: time.Since(start), Errors: failed, Excluded: c.of == "webhook" && !met && err == nil})
	return met, err
}

func (c *conditions) evaluate(ctx context.Context, e *cel.Evaluator) (met bool, failed int, err error) {
	var errs []error
	budget := int64(cel.MatchBudget)
	for _, x := range c.list {
		result, err := e.Evaluate(ctx, x, &budget)
		if err != nil {
			return false, len(errs), err
		}
		if result.False() {
			return false, len(errs), nil
		}
		if result.Err != nil {
			errs = append(errs, result.Err)
		}
	}
	return len(errs) == 0, len(errs), utilerrors.NewAggregate(errs)
}
