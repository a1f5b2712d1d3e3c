package cel

import (
	"fmt"

	celgo "github.com/google/cel-go/cel"
)

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	// Source is the expression's text.
	Source string
	// Err is the reason why it does not compile, as kube-apiserver words it: "compilation failed: ERROR: <input>:1:1:
	// …". Such an expression evaluates to this error.
	Err error

	program celgo.Program
	output  *celgo.Type
	// selections are the fields that an expression of a Scope reads, with the variable, and also with "" for any
	// operand.
	selections map[[2]string]bool
}

// Compiler compiles the expressions of one policy. They may share variables. It is not safe for concurrent use, but
// its expressions are.
type Compiler struct {
	fields       fields
	variables    map[string]*Expression
	environments map[Declarations]*celgo.Env
}

// NewCompiler returns a compiler. If composed is true, expressions may use variables.x for each x that Define has
// defined before.
func NewCompiler(composed bool) *Compiler {
	c := &Compiler{environments: map[Declarations]*celgo.Env{}}
	if composed {
		c.fields, c.variables = fields{}, map[string]*Expression{}
	}
	return c
}

func (c *Compiler) environment(d Declarations) (*celgo.Env, error) {
	if env, ok := c.environments[d]; ok {
		return env, nil
	}
	env, err := environment(d, c.fields)
	if err == nil {
		c.environments[d] = env
	}
	return env, err
}

// Check type-checks an expression that may have any result. complaints are the compiler's messages. err is set if the
// expression did not reach the compiler.
func (c *Compiler) Check(source string, d Declarations) (complaints string, err error) {
	env, err := c.environment(d)
	if err != nil {
		return "", err
	}
	if _, issues := env.Compile(source); issues.Err() != nil {
		return issues.String(), nil
	}
	return "", nil
}

// Compile compiles an expression that must evaluate to want.
func (c *Compiler) Compile(source string, want Result, d Declarations) *Expression {
	env, err := c.environment(d)
	if err != nil {
		return &Expression{Source: source, Err: err}
	}
	e, _ := compile(env, source, want)
	return e
}

// compile also returns the checked syntax tree, or nil if there is none.
func compile(env *celgo.Env, source string, want Result) (*Expression, *celgo.Ast) {
	e := &Expression{Source: source}
	CountCompilation()
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		e.Err = fmt.Errorf("compilation failed: %s", issues)
		return e, nil
	}
	if e.output = ast.OutputType(); !want.has(e.output) {
		if len(want.types) == 1 {
			e.Err = fmt.Errorf("must evaluate to %v but got %v", want.types[0], e.output)
		} else {
			e.Err = fmt.Errorf("must evaluate to one of %v but got %v", want.types, e.output)
		}
		return e, ast
	}
	var err error
	if e.program, err = env.Program(ast); err != nil {
		e.Err = fmt.Errorf("program instantiation failed: %w", err)
	}
	return e, ast
}

// Define compiles a variable. Expressions that are compiled later may use it. Earlier ones, and the variable itself,
// may not, so there is no recursion.
func (c *Compiler) Define(name, source string, d Declarations) *Expression {
	e := c.Compile(source, Any, d)
	c.fields[name] = celgo.DynType
	if e.Err == nil {
		c.fields[name] = declared(e.output)
	}
	c.variables[name] = e
	return e
}

// declared returns the type of a variable with a value of type t. It keeps the language's own types, and lists and
// maps of them. Others become dynamic, as in Kubernetes.
func declared(t *celgo.Type) *celgo.Type {
	switch t.Kind() {
	case celgo.BoolKind, celgo.BytesKind, celgo.DoubleKind, celgo.DurationKind, celgo.IntKind,
		celgo.NullTypeKind, celgo.StringKind, celgo.TimestampKind, celgo.UintKind, celgo.AnyKind:
		return t
	case celgo.ListKind:
		return celgo.ListType(declared(t.Parameters()[0]))
	case celgo.MapKind:
		return celgo.MapType(declared(t.Parameters()[0]), declared(t.Parameters()[1]))
	}
	return celgo.DynType
}

// Variables returns the defined variables, for an Evaluator.
func (c *Compiler) Variables() map[string]*Expression { return c.variables }
