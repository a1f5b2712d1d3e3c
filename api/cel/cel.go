// Package cel compiles and evaluates the Common Expression Language as Kubernetes extends it: the language of
// ValidatingAdmissionPolicies, MutatingAdmissionPolicies, the matchConditions of webhooks, and the rules of custom
// resources (which api/structural compiles, in an Environment of its types).
//
// A Compiler takes the text of an expression and the names that it may use (Declarations), whose types are dynamic or
// follow a schema (Shape). It returns an Expression. Compile errors equal kube-apiserver's. An Evaluator evaluates
// expressions with the Bindings of one request, within a budget. The result is a Go value or, for a mutation, an apply
// configuration or a JSON patch.
//
// Everything is built on first use: a program that only imports this package has no environment (environment.go).
// Kubernetes' functions are in one file per library (library_*.go), the costs of calls in cost.go, the estimate of
// worst-case costs in estimate.go, and all limits of costs in limits.go.
//
// The package depends neither on storage nor on servers. Permission checks go to an Authorizer.
// https://kubernetes.io/docs/reference/using-api/cel/
package cel

import (
	"errors"
	"sync/atomic"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

var compilations atomic.Int64

// Compilations returns how many compilations of expressions the process has begun. Each takes half a millisecond of
// CPU or more, so one request must not be able to cause many of them.
func Compilations() int64 { return compilations.Load() }

// CountCompilation counts an expression that is about to be compiled outside of this package.
func CountCompilation() { compilations.Add(1) }

// Result is the set of types that an expression may evaluate to.
type Result struct {
	types []*celgo.Type
}

// The results that the fields of policies require.
var (
	// Any allows any type, for a variable.
	Any = Result{[]*celgo.Type{celgo.AnyType, celgo.DynType}}
	// Bool is for a condition, String for a message, StringOrNull for an audit annotation.
	Bool         = Result{[]*celgo.Type{celgo.BoolType}}
	String       = Result{[]*celgo.Type{celgo.StringType}}
	StringOrNull = Result{[]*celgo.Type{celgo.StringType, celgo.NullType}}
	// Object is for an apply configuration, Patches for a JSON patch.
	Object  = Result{[]*celgo.Type{objectType}}
	Patches = Result{[]*celgo.Type{celgo.ListType(patchType)}}
)

// has reports whether a type is one of the result's.
func (r Result) has(t *celgo.Type) bool {
	for _, want := range r.types {
		if t.IsExactType(want) || celgo.AnyType.IsExactType(want) {
			return true
		}
	}
	return false
}

// Declarations are the names that an expression may use in addition to object, oldObject, request and namespaceObject.
// They also select its functions.
type Declarations struct {
	// Params declares params, Authorizer authorizer and authorizer.requestResource.
	Params, Authorizer bool
	// Patch declares the types Object, Object.… and JSONPatch, and jsonpatch.escapeKey.
	Patch bool
	// Stored is for expressions that are already stored: they may use features that this release can read but does not
	// accept in new expressions yet, so that the previous release can still read all stored expressions.
	Stored bool
	// Object is the shape of object and oldObject, Param that of params. Without a shape they are dynamic.
	Object, Param *Shape
}

func (d Declarations) typed() bool { return d.Object != nil || d.Param != nil }

// ErrBudget means that a policy's expressions have exhausted their budget.
var ErrBudget = errors.New(
	"validation failed due to running out of cost budget, no further validation rules will be run")

// Kubernetes' own types.
var (
	ipType       = celgo.OpaqueType("net.IP")
	cidrType     = celgo.OpaqueType("net.CIDR")
	urlType      = celgo.ObjectType("kubernetes.URL")
	quantityType = celgo.ObjectType("kubernetes.Quantity")
	semverType   = celgo.ObjectType("kubernetes.Semver")
	formatType   = celgo.ObjectType("kubernetes.NamedFormat")

	authorizerType    = celgo.ObjectType("kubernetes.authorization.Authorizer")
	pathCheckType     = celgo.ObjectType("kubernetes.authorization.PathCheck")
	groupCheckType    = celgo.ObjectType("kubernetes.authorization.GroupCheck")
	resourceCheckType = celgo.ObjectType("kubernetes.authorization.ResourceCheck")
	decisionType      = celgo.ObjectType("kubernetes.authorization.Decision")

	objectType = types.NewObjectType("Object")
	patchType  = types.NewObjectType("JSONPatch")
)
