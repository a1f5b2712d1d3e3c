package cel

import (
	"fmt"
	"sync"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/env"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
)

// The environments that the compilers share. Each is built on first use, which takes a few milliseconds and about a
// mebibyte.
var (
	newExpressions    = sync.OnceValues(func() (*celgo.Env, error) { return baseEnvironment(false) })
	storedExpressions = sync.OnceValues(func() (*celgo.Env, error) { return baseEnvironment(true) })

	// stateless has the environments without variables, guarded by statelessMu.
	stateless   = map[Declarations]*celgo.Env{}
	statelessMu sync.Mutex
)

// baseEnvironment returns the language with the libraries of Kubernetes 1.37. As in Kubernetes, new expressions are
// limited to the libraries of 1.36.
func baseEnvironment(stored bool) (*celgo.Env, error) {
	options := []celgo.EnvOption{
		celgo.StdLib(celgo.StdLibSubset(env.NewLibrarySubset().AddExcludedFunctions(
			env.NewFunction(overloads.Matches)))), // replaced by regexLibrary's
		celgo.HomogeneousAggregateLiterals(),
		celgo.EagerlyValidateDeclarations(true),
		celgo.DefaultUTCTimeZone(true),
		celgo.CrossTypeNumericComparisons(true),
		celgo.OptionalTypes(),
		celgo.CostEstimatorOptions(checker.PresenceTestHasCost(false)),
		celgo.ASTValidators(
			celgo.ValidateDurationLiterals(),
			celgo.ValidateTimestampLiterals(),
			patternLiterals{},
			celgo.ValidateHomogeneousAggregateLiterals(),
		),
		celgo.Types(ipType, cidrType),
		ext.Strings(ext.StringsVersion(2)),
		ext.Sets(),
		ext.TwoVarComprehensions(),
		ext.Lists(ext.ListsVersion(3)),
	}
	for _, l := range libraries {
		if stored || !l.storedOnly {
			options = append(options, celgo.Lib(l))
		}
	}
	return celgo.NewCustomEnv(append(options, celgo.Lib(costLimits{}))...)
}

// costLimits makes every program count and limit its cost.
type costLimits struct{}

func (costLimits) CompileOptions() []celgo.EnvOption { return nil }

func (costLimits) ProgramOptions() []celgo.ProgramOption {
	return []celgo.ProgramOption{
		celgo.EvalOptions(celgo.OptOptimize, celgo.OptTrackCost),
		celgo.CostLimit(PerCallLimit),
		celgo.CostTrackerOptions(interpreter.PresenceTestHasCost(false)),
		celgo.CostTracking(costs{}),
		celgo.InterruptCheckFrequency(checkEvery),
	}
}

// environment returns an environment with the declarations. If variables is nil, the name variables is not declared
// and, unless there are shapes, the environment is shared.
func environment(d Declarations, variables fields) (*celgo.Env, error) {
	if variables != nil || d.typed() {
		return extended(d, variables)
	}
	statelessMu.Lock()
	defer statelessMu.Unlock()
	if env, ok := stateless[d]; ok {
		return env, nil
	}
	env, err := extended(d, nil)
	if err == nil {
		stateless[d] = env
	}
	return env, err
}

func extended(d Declarations, variables fields) (*celgo.Env, error) {
	env, err := base(d.Stored)
	if err != nil {
		return nil, err
	}
	options := []celgo.EnvOption{
		celgo.Variable("object", d.Object.typ()),
		celgo.Variable("oldObject", d.Object.typ()),
		celgo.Variable("namespaceObject", celgo.ObjectType(namespaceName)),
		celgo.Variable("request", celgo.ObjectType(requestName)),
	}
	if d.Params {
		options = append(options, celgo.Variable("params", d.Param.typ()))
	}
	if d.Authorizer {
		options = append(options,
			celgo.Variable("authorizer", authorizerType),
			celgo.Variable("authorizer.requestResource", resourceCheckType))
	}
	if variables != nil {
		options = append(options, celgo.Variable("variables", celgo.ObjectType(variablesName)))
	}
	if d.Patch {
		options = append(options, celgo.Lib(patchLibrary))
	}
	p := celgo.CustomTypeProvider(newProvider(env.CELTypeProvider(), d, variables))
	return env.Extend(append([]celgo.EnvOption{p}, options...)...)
}

// Environment returns an environment with Kubernetes' functions for a caller's own variables. Some may have struct
// types: fieldsOf returns the fields of such a type, and false for other types. stored is as in Declarations. Programs
// in the environment count their cost and end at PerCallLimit.
func Environment(stored bool, fieldsOf func(structType string) (fields map[string]*celgo.Type, ok bool),
	variables ...celgo.EnvOption) (*celgo.Env, error) {
	env, err := base(stored)
	if err != nil {
		return nil, err
	}
	p := celgo.CustomTypeProvider(&structProvider{env.CELTypeProvider(), fieldsOf})
	return env.Extend(append([]celgo.EnvOption{p}, variables...)...)
}

func base(stored bool) (*celgo.Env, error) {
	build := newExpressions
	if stored {
		build = storedExpressions
	}
	env, err := build()
	if err != nil {
		return nil, fmt.Errorf("the CEL environment: %w", err)
	}
	return env, nil
}
