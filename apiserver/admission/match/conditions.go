package match

import (
	"context"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
)

// Conditions are the match conditions of a webhook or a policy. They are immutable.
type Conditions struct {
	List []*cel.Expression
	// Name is the webhook's or the policy's, and Of is "webhook" or "policy".
	Name, Of string
	// Kind is the plugin's, and Log records the evaluations.
	Kind calls.Type
	Log  *calls.Log
}

// Meet reports whether all conditions are true. If one is false, the result is false even if others fail. An error
// is left to the failure policy; if that ignores failures, the request does not meet the conditions.
func (c *Conditions) Meet(ctx context.Context, q *Request, e *cel.Evaluator, ignores bool) (bool, error) {
	start := time.Now()
	met, failed, err := c.evaluate(ctx, e)
	if ignores {
		err = nil
	}
	c.Log.Evaluated(calls.Conditions{Name: c.Name, Of: c.Of, Type: c.Kind, Operation: string(q.Operation),
		Took: time.Since(start), Errors: failed, Excluded: c.Of == "webhook" && !met && err == nil})
	return met, err
}

func (c *Conditions) evaluate(ctx context.Context, e *cel.Evaluator) (met bool, failed int, err error) {
	var errs []error
	budget := int64(cel.MatchBudget)
	for _, x := range c.List {
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
