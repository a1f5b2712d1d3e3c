package cel

import (
	"fmt"
	"sync"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
)

// deviceName is the type of device, the variable in expressions that select devices for a claim (KEP-4381).
const deviceName = "kubernetes.DRADevice"

// deviceFields groups attributes and capacity by the domain of their names: device.attributes["example.com"].model.
var deviceFields = fields{
	"driver":                   celgo.StringType,
	"allowMultipleAllocations": celgo.BoolType,
	"attributes":               celgo.MapType(celgo.StringType, celgo.MapType(celgo.StringType, celgo.DynType)),
	"capacity":                 celgo.MapType(celgo.StringType, celgo.MapType(celgo.StringType, quantityType)),
}

var deviceEnvironment = sync.OnceValues(func() (*celgo.Env, error) {
	base, err := newExpressions()
	if err != nil {
		return nil, err
	}
	return base.Extend(
		celgo.CustomTypeProvider(newProvider(base.CELTypeProvider(), Declarations{}, nil)),
		celgo.Variable("device", celgo.ObjectType(deviceName)),
		ext.Bindings(ext.BindingsVersion(0)),
	)
})

// CheckDeviceSelector returns the error in a new expression that selects devices, or nil.
func CheckDeviceSelector(source string) error {
	env, err := deviceEnvironment()
	if err != nil {
		return fmt.Errorf("unexpected error loading CEL environment: %w", err)
	}
	CountCompilation()
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return fmt.Errorf("compilation failed: %s", issues)
	}
	// an attribute may be a bool at run time
	if t := ast.OutputType(); !Bool.has(t) && t.Kind() != celgo.DynKind && t.Kind() != celgo.AnyKind {
		return fmt.Errorf("must evaluate to %v or the unknown type, not %v", celgo.BoolType, t)
	}
	if _, err := env.Program(ast); err != nil {
		return fmt.Errorf("program instantiation failed: %w", err)
	}
	return nil
}
