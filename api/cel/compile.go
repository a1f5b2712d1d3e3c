package cel

import (
	"fmt"

	celgo "github.com/google/cel-go/cel"
)

// Expression is a compiled expression. It may be evaluated by many goroutines at a time.
type Expression struct {
	// Source is the text it was made of.
	Source string
	// Err says why it could not be compiled, in the words of kube-apiserver: "compilation
	// failed: ERROR: <input>:1:1: …". Such an expression evaluates to that error.
	Err error

	program celgo.Program
	output  *celgo.Type
}

// Compiler compiles the expressions of one policy, which may share variables. It is not safe
// for concurrent use; its expressions are.
type Compiler struct {
	fields       fields
	variables    map[string]*Expression
	environments map[Declarations]*celgo.Env
}

// NewCompiler returns a compiler. With composed, expressions may name variables.x, for each x
// that Define has defined before.
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

// Check compiles one expression no further than to see whether its types agree, whatever it
// evaluates to. complaints are the compiler's own words; err is for an expression that it did not see.
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

// Compile compiles one expression, which must evaluate to want.
func (c *Compiler) Compile(source string, want Result, d Declarations) *Expression {
	e := &Expression{Source: source}
	env, err := c.environment(d)
	if err != nil {
		e.Err = err
		return e
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		e.Err = fmt.Errorf("compilation failed: %s", issues)
		return e
	}
	if e.output = ast.OutputType(); !want.has(e.output) {
		if len(want.types) == 1 {
			e.Err = fmt.Errorf("must evaluate to %v but got %v", want.types[0], e.output)
		} else {
			e.Err = fmt.Errorf("must evaluate to one of %v but got %v", want.types, e.output)
		}
		return e
	}
	if e.program, err = env.Program(ast); err != nil {
		e.Err = fmt.Errorf("program instantiation failed: %w", err)
	}
	return e
}

// Define compiles a variable. What is compiled after it may name it, what was compiled before
// it, itself included, may not: there is no recursion.
func (c *Compiler) Define(name, source string, d Declarations) *Expression {
	e := c.Compile(source, Any, d)
	c.fields[name] = celgo.DynType
	if e.Err == nil {
		c.fields[name] = declared(e.output)
	}
	c.variables[name] = e
	return e
}

// declared is the type that a variable keeps of what it evaluates to: those of the language itself,
// and lists and maps of them. Others are dynamic, as in Kubernetes.
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

// Variables are the variables that were defined, for an Evaluator.
func (c *Compiler) Variables() map[string]*Expression { return c.variables }
