package cel

import (
	"context"
	"fmt"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// Fields are the types of the fields of a struct type.
type Fields = map[string]*celgo.Type

// Scope compiles the expressions of a configuration file, with names that the caller defines. The author of the file
// is trusted, so expressions may use all features that this release can read. It is safe for concurrent use.
type Scope struct {
	env *celgo.Env
}

// Text, Texts and TextLists are the types of the usual fields.
var (
	Text      = celgo.StringType
	Texts     = stringList
	TextLists = celgo.MapType(celgo.StringType, stringList)
)

// Claims is the type of a map with values of any type.
var Claims = celgo.MapType(celgo.StringType, celgo.AnyType)

// Struct returns the struct type with a name.
func Struct(name string) *celgo.Type { return celgo.ObjectType(name) }

// List returns the type of lists of another type.
func List(element *celgo.Type) *celgo.Type { return celgo.ListType(element) }

// NewScope declares variables by name. structs are the struct types that the variables use.
func NewScope(variables map[string]*celgo.Type, structs map[string]Fields) (*Scope, error) {
	var declared []celgo.EnvOption
	for name, t := range variables {
		declared = append(declared, celgo.Variable(name, t))
	}
	env, err := Environment(true, func(name string) (map[string]*celgo.Type, bool) {
		f, ok := structs[name]
		return f, ok
	}, declared...)
	if err != nil {
		return nil, err
	}
	return &Scope{env}, nil
}

// Compile compiles an expression that must evaluate to want.
func (s *Scope) Compile(source string, want Result) *Expression {
	e, checked := compile(s.env, source, want)
	if checked != nil {
		e.selections = selections(checked)
	}
	return e
}

// Eval evaluates an expression of a Scope and subtracts its cost from the budget. values has the values of the
// variables, in JSON's types. The results are the same as those of Evaluator.Evaluate.
func (x *Expression) Eval(ctx context.Context, values map[string]any, budget *int64) (Evaluation, error) {
	if x.Err != nil {
		return Evaluation{Err: fmt.Errorf("compilation error: %w", x.Err)}, nil
	}
	result, details, err := x.program.ContextEval(ctx, values)
	return x.finish(result, details, err, budget)
}

// Selects reports whether an expression of a Scope reads a field of a variable by name: v.f or v.?f.
func (x *Expression) Selects(variable, field string) bool {
	return x.selections[[2]string{variable, field}]
}

// SelectsField is Selects for a field of any value.
func (x *Expression) SelectsField(field string) bool { return x.selections[[2]string{"", field}] }

func selections(checked *celgo.Ast) map[[2]string]bool {
	found := map[[2]string]bool{}
	note := func(operand ast.Expr, field string) {
		found[[2]string{"", field}] = true
		if operand.Kind() == ast.IdentKind {
			found[[2]string{operand.AsIdent(), field}] = true
		}
	}
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			note(e.AsSelect().Operand(), e.AsSelect().FieldName())
		case ast.CallKind:
			args := e.AsCall().Args()
			if e.AsCall().FunctionName() != operators.OptSelect || len(args) != 2 || args[1].Kind() != ast.LiteralKind {
				return
			}
			if field, ok := args[1].AsLiteral().Value().(string); ok {
				note(args[0], field)
			}
		}
	}))
	return found
}
