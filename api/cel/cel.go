// Package cel is the Common Expression Language as Kubernetes speaks it: the language of
// ValidatingAdmissionPolicies, MutatingAdmissionPolicies and the matchConditions of webhooks.
//
// What comes in: the text of an expression, and what it may name (Declarations), which is
// anything or has the fields of a schema (Shape). A Compiler makes an Expression of it, with the
// compiler's complaints in the words that kube-apiserver has for them; an Evaluator runs
// expressions on the Bindings of one request, within a Budget. What goes out is a Go value, or for a mutation the object or the JSON patch.
//
// Nothing is made before it is asked for: a program that only imports this package pays for
// no environment (environment.go). The functions that Kubernetes adds to the language are in
// a file for each library (library_*.go), what calls cost is in cost.go.
//
// The package knows no storage and no server; whom to ask about rights is an Authorizer.
// https://kubernetes.io/docs/reference/using-api/cel/
package cel

import (
	"errors"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

// The limits of kube-apiserver (k8s.io/apiserver/pkg/apis/cel). A unit of cost is roughly
// what it takes to look at one value; 10,000,000 are about a second.
const (
	// PerCallLimit is what one expression may cost.
	PerCallLimit = 1_000_000
	// PolicyBudget is what all the expressions of a policy may cost for one binding and one
	// parameter; MatchBudget is the same for the match conditions.
	PolicyBudget = 10_000_000
	MatchBudget  = 2_500_000
	// MaxMessage is how long the result of a messageExpression may be, in bytes.
	MaxMessage = 5 << 10
	// checkEvery is after how many turns of a loop the context is looked at.
	checkEvery = 100
)

// Result is what an expression must evaluate to.
type Result struct {
	types []*celgo.Type
}

// The results that the fields of policies ask for.
var (
	// Any is no demand at all: a variable's.
	Any = Result{[]*celgo.Type{celgo.AnyType, celgo.DynType}}
	// Bool is a condition's, String a message's, StringOrNull an audit annotation's.
	Bool         = Result{[]*celgo.Type{celgo.BoolType}}
	String       = Result{[]*celgo.Type{celgo.StringType}}
	StringOrNull = Result{[]*celgo.Type{celgo.StringType, celgo.NullType}}
	// Object is an apply configuration's, Patches a JSON patch's.
	Object  = Result{[]*celgo.Type{objectType}}
	Patches = Result{[]*celgo.Type{celgo.ListType(patchType)}}
)

// has reports whether a type will do.
func (r Result) has(t *celgo.Type) bool {
	for _, want := range r.types {
		if t.IsExactType(want) || celgo.AnyType.IsExactType(want) {
			return true
		}
	}
	return false
}

// Declarations are what an expression may name besides object, oldObject, request and
// namespaceObject. They also choose its vocabulary.
type Declarations struct {
	// Params declares params, Authorizer authorizer and authorizer.requestResource.
	Params, Authorizer bool
	// Patch declares the types Object, Object.… and JSONPatch, and jsonpatch.escapeKey.
	Patch bool
	// Stored is for expressions that are stored already: they may use what this release
	// knows but does not take in new expressions yet, so that the release before it can
	// still read what is stored.
	Stored bool
	// Object is the shape of object and oldObject, Param of params. Without one they may be anything.
	Object, Param *Shape
}

func (d Declarations) typed() bool { return d.Object != nil || d.Param != nil }

// ErrBudget says that the expressions of a policy have cost all they may.
var ErrBudget = errors.New("validation failed due to running out of cost budget, no further validation rules will be run")

// The types that Kubernetes adds.
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
