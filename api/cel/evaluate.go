package cel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// Document is the value of a name in expressions: a JSON document in Go's types (maps, lists, strings, int64, float64,
// bool, nil). It is built when an expression first reads it, and then cached. It is not safe for concurrent use.
type Document struct {
	Make func() (any, error)

	value ref.Val
}

func (d *Document) get() ref.Val {
	switch {
	case d == nil:
		return types.NullValue
	case d.value != nil:
		return d.value
	}
	doc, err := d.Make()
	if err != nil {
		d.value = types.WrapErr(err)
	} else {
		d.value = types.DefaultTypeAdapter.NativeToValue(doc)
	}
	return d.value
}

// Bindings are the values of the names in an expression. A nil Document is null.
type Bindings struct {
	Object, OldObject, Request, Namespace, Params *Document
	// Authorizer and Resource provide authorizer and authorizer.requestResource. They are nil if these are not
	// declared.
	Authorizer Authorizer
	Resource   Resource
}

// Evaluator evaluates the expressions of one policy for one request. It is not safe for concurrent use.
type Evaluator struct {
	bindings  Bindings
	variables *variables
}

// NewEvaluator returns an evaluator with these bindings. defined are the variables of the policy's compiler.
func NewEvaluator(b Bindings, defined map[string]*Expression) *Evaluator {
	e := &Evaluator{bindings: b}
	if defined != nil {
		e.variables = &variables{evaluator: e, defined: defined, values: map[string]ref.Val{}}
	}
	return e
}

// ResolveName implements interpreter.Activation.
func (e *Evaluator) ResolveName(name string) (any, bool) {
	b := &e.bindings
	switch name {
	case "object":
		return b.Object.get(), true
	case "oldObject":
		return b.OldObject.get(), true
	case "request":
		return b.Request.get(), true
	case "namespaceObject":
		return b.Namespace.get(), true
	case "params":
		return b.Params.get(), true
	case "variables":
		return e.variables, e.variables != nil
	case "authorizer":
		if b.Authorizer != nil {
			return authorizerValue(b.Authorizer), true
		}
	case "authorizer.requestResource":
		if b.Authorizer != nil {
			return resourceValue(b.Authorizer, b.Resource), true
		}
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (e *Evaluator) Parent() interpreter.Activation { return nil }

// Evaluation is the result of an expression.
type Evaluation struct {
	// Err is the reason why there is no result.
	Err error

	value ref.Val
}

// True reports whether the result is true.
func (e Evaluation) True() bool { return e.Err == nil && e.value == types.True }

// False reports whether the result is false.
func (e Evaluation) False() bool { return e.Err == nil && e.value == types.False }

// Text returns the result if it is a string.
func (e Evaluation) Text() (string, bool) {
	if e.Err != nil || e.value == nil {
		return "", false
	}
	s, ok := e.value.Value().(string)
	return s, ok
}

// Null reports whether the result is null.
func (e Evaluation) Null() bool { return e.Err == nil && e.value == types.NullValue }

// Type returns the name of the result's type.
func (e Evaluation) Type() string { return e.value.Type().TypeName() }

// Plain returns the result in JSON's types.
func (e Evaluation) Plain() (any, error) {
	if e.Err != nil {
		return nil, e.Err
	}
	return plain(e.value)
}

// Evaluate evaluates the expression and subtracts its cost from the budget. If the expression fails, or exceeds
// PerCallLimit, the Evaluation's Err is set. If Evaluate itself returns an error, the budget is exhausted and the
// caller must not evaluate any further expression.
func (e *Evaluator) Evaluate(ctx context.Context, x *Expression, budget *int64) (Evaluation, error) {
	if x.Err != nil {
		return Evaluation{Err: fmt.Errorf("compilation error: %w", x.Err)}, nil
	}
	if e.variables != nil {
		e.variables.ctx, e.variables.cost = ctx, 0
	}
	result, details, err := x.program.ContextEval(ctx, e)
	if e.variables != nil && !spend(budget, e.variables.cost) {
		return Evaluation{}, ErrBudget
	}
	return x.finish(result, details, err, budget)
}

// finish subtracts the cost of a program's run and returns its result.
func (x *Expression) finish(result ref.Val, details *celgo.EvalDetails, err error, budget *int64) (Evaluation, error) {
	if details == nil || details.ActualCost() == nil {
		return Evaluation{}, fmt.Errorf("runtime cost could not be calculated for expression: %v, no further "+
			"expression will be run", x.Source)
	}
	if !spend(budget, *details.ActualCost()) {
		return Evaluation{}, ErrBudget
	}
	if err != nil {
		return Evaluation{Err: fmt.Errorf("expression '%v' resulted in error: %w", x.Source, err)}, nil
	}
	return Evaluation{value: result}, nil
}

func spend(budget *int64, cost uint64) bool {
	if cost > math.MaxInt64 || int64(cost) > *budget {
		*budget = 0
		return false
	}
	*budget -= int64(cost)
	return true
}

// variables is the value of the name variables. Each variable is evaluated once, when it is first read.
type variables struct {
	evaluator *Evaluator
	defined   map[string]*Expression
	values    map[string]ref.Val
	// ctx and cost belong to the evaluation in progress.
	ctx  context.Context
	cost uint64
}

var (
	_ traits.Indexer     = (*variables)(nil)
	_ traits.FieldTester = (*variables)(nil)
)

// Get implements traits.Indexer.
func (v *variables) Get(key ref.Val) ref.Val {
	name, ok := key.Value().(string)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key)
	}
	if is, ok := v.values[name]; ok {
		return is
	}
	x, ok := v.defined[name]
	if !ok {
		return types.NewErr("no such key: %s", name)
	}
	v.values[name] = v.evaluate(name, x)
	return v.values[name]
}

func (v *variables) evaluate(name string, x *Expression) ref.Val {
	if x.Err != nil {
		return types.NewErr("composited variable %q fails to compile: %v", name, x.Err)
	}
	is, details, err := x.program.ContextEval(v.ctx, v.evaluator)
	if details == nil || details.ActualCost() == nil {
		return types.NewErr("unable to calculate cost of variable %q", name)
	}
	if v.cost += *details.ActualCost(); v.cost < *details.ActualCost() {
		v.cost = math.MaxUint64
	}
	if err != nil {
		return types.NewErr("composited variable %q fails to evaluate: %v", name, err)
	}
	return is
}

// IsSet implements traits.FieldTester.
func (v *variables) IsSet(key ref.Val) ref.Val {
	name, _ := key.Value().(string)
	_, ok := v.defined[name]
	return types.Bool(ok)
}

// ConvertToNative implements ref.Val.
func (v *variables) ConvertToNative(reflect.Type) (any, error) {
	return nil, errors.New("variables have no native value")
}

// ConvertToType implements ref.Val.
func (v *variables) ConvertToType(ref.Type) ref.Val {
	return types.NewErr("variables cannot be converted")
}

// Equal implements ref.Val.
func (v *variables) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(v)) }

// Type implements ref.Val.
func (v *variables) Type() ref.Type {
	return types.NewObjectType(variablesName, traits.IndexerType|traits.FieldTesterType)
}

// Value implements ref.Val.
func (v *variables) Value() any { return v }
